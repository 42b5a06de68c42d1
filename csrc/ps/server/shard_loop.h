// ShardLoop: one thread of a server and everything it owns: a shard, the links to its clients, and
// on the first thread the door. Reads frames, hands them to the shard, makes the journal durable,
// sends the answers. Other threads talk to it through posted tasks only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "ps/protocol/frame_reader.h"
#include "ps/protocol/pause.h"
#include "ps/shard/shard.h"
#include "transport/joining/door.h"

namespace gradring::ps {

// A journal and its durability.
class DurableJournal : public Journal {
 public:
  // Everything appended is as safe as was asked for. Throws if it cannot be: the shard stops.
  virtual void sync(Time now) = 0;
  // Feeds what was there into a new shard, before anything else.
  virtual void replay(Shard& shard) = 0;
};

class ShardLoop {
 public:
  using Task = std::function<void(Shard&, std::vector<Answer>&)>;
  // `last_training`: the last pull or push. Returns when the next step is due; nothing: that was
  // the last one.
  using Step = std::function<std::optional<Time>(Shard&, Time last_training)>;
  struct Begun;  // What another thread may wait for.
  struct Hooks {
    std::function<void(transport::Arrival)> arrived;            // From the door.
    std::function<void(std::uint32_t, Job)> job;                // Of this shard.
    std::function<void(std::uint32_t, const Failure&)> failed;  // The thread has ended by itself.
  };

  // `door`: the first thread's, else none.
  ShardLoop(const ShardOptions& options, std::unique_ptr<DurableJournal> journal,
            std::unique_ptr<transport::Door> door, Hooks hooks);
  ~ShardLoop();

  void start();
  void stop();  // From another thread; clients see their connections end.

  // A connection whose handshake is done.
  void deliver(transport::Arrival arrival);
  // Runs on the shard's thread and returns when it is done. Throws what it throws, or Closed.
  void ask(const Task& task);
  // Runs steps on the shard's thread, each when it is due: in a turn that has no request to do, or
  // some milliseconds later at the latest. A step that throws is the last one; finish() waits for
  // that, and throws what it threw, or Closed.
  std::shared_ptr<Begun> begin(Step step, Time due);
  void finish(Begun& begun);
  void post(Task task);
  // See Shard; from any thread.
  std::uint64_t newest_incarnation() const { return newest_incarnation_.load(); }

 private:
  struct Outgoing {
    wire::PsHeaderBytes head{};
    Answer answer;  // Whose payload follows.
  };
  struct Guest {
    std::unique_ptr<transport::Link> link;
    FrameReader reader;
    std::deque<Outgoing> out;
    std::size_t out_bytes = 0;  // In `out`, header and all.
    std::size_t out_sent = 0;   // Of the first.
    bool is_blocked = false;
    bool is_gone = false;
  };
  // A local client that has still to pass its memory.
  struct Newcomer {
    transport::Fd fd;
    Time deadline;
  };

  void run();
  bool turn(Time now);
  bool take_steps(Time now, bool is_busy);
  bool take_posted();
  void admit(transport::Arrival arrival);
  void add_guest(std::unique_ptr<transport::Link> link, Time now);
  bool take_memory(Time now);
  bool may_read(Connection connection, const Guest& guest) const;
  bool read_from(Connection connection, Guest& guest, Time now);
  void settle(Time now);
  bool write_to(Guest& guest);
  void remove_gone(Time now);
  void work_at_door(Time now);
  void sleep(Time now);
  void wake() const;

  const ShardOptions options_;
  std::unique_ptr<DurableJournal> journal_;
  Shard shard_;
  std::unique_ptr<transport::Door> door_;
  Hooks hooks_;
  std::map<Connection, Guest> guests_;
  std::list<Newcomer> newcomers_;
  Connection last_connection_ = 0;
  std::vector<Answer> answers_;
  bool has_news_ = false;  // Something was handed to the shard since the journal was synced.
  Time next_look_{};       // At the door and the shard's timers.
  Time next_notice_{};     // Of links whose other end is gone.
  Pause pause_;
  std::vector<std::shared_ptr<Begun>> steps_;  // Under way.
  Time last_training_{};

  Guarded<std::vector<Task>> posted_;
  std::atomic<bool> has_posted_{false};               // A hint, set under posted_'s lock.
  std::atomic<bool> is_stopping_{false};              // Set by stop(), read at every turn.
  std::atomic<bool> is_over_{false};                  // No task will run any more.
  std::atomic<std::uint64_t> newest_incarnation_{0};  // Set by the shard's thread.
  transport::Fd wake_;
  std::thread thread_;
};

}  // namespace gradring::ps
