// How a thread waits for other ranks: yields about 50 us, then sleeps in the kernel in slices, and
// between them looks for failure, deadline and signals. One rule for shared memory and sockets
// (cpu_limits: pause-spinning with more ranks than cores costs 26x, sleeping at once 3-30x). One
// Idle lives as long as one operation; it is cheap until the first real wait.
#pragma once

#include <atomic>
#include <span>

#include "base/clock.h"
#include "base/record.h"
#include "transport/links/link.h"
#include "transport/membership/group.h"

namespace gradring::transport {

struct Interest {
  Link* link =
      nullptr;  // nullptr: a connection that has still to come in; the group's wake covers it.
  bool wants_recv = false;
  bool wants_send = false;
};

// Thrown by Idle when the time is up; the communicator turns it into TimedOut with the operation's
// state.
struct DeadlinePassed {};

class Idle {
 public:
  // `interruptible`: this is a user's thread, signals may end the wait.
  Idle(Group& group, Millis timeout, bool interruptible)
      : group_(group), timeout_(timeout), interruptible_(interruptible) {}
  ~Idle();
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  // What to publish in the heartbeats if this wait gets long. `call` outlives the Idle.
  void waits_in(const Call& call, std::uint64_t seq) {
    call_ = &call;
    seq_ = seq;
  }

  // Where this operation is recorded, or nullptr. Outlives the Idle.
  void records_in(OperationRing::Slot* slot) { record_ = slot; }
  OperationRing::Slot* record() const { return record_; }
  // The next wait is for this rank of the world, -1: for none in particular. Recorded only when it
  // gets long.
  void waits_for(Rank world_rank) { awaited_ = world_rank; }

  // Progress was made: the next wait starts with yields again, and its deadline anew. So a timeout
  // is the longest time without progress, and moving gigabytes over a slow link is none.
  void reset() {
    if (record_ != nullptr) record_->stamp();
    yields_ = 0;
    deadline_ = {};
    if (call_ != nullptr) group_.note_progress();
  }

  // Something moved that this operation does not wait for: the next wait starts with yields again,
  // and its deadline stays. Throws as check() does.
  void note_other_progress() {
    check();
    yields_ = 0;
  }

  // Waits a little. Throws the group's failure, DeadlinePassed or Interrupted.
  void on_links(std::span<const Interest> interests);
  // Waits a little for *word to differ from `seen`; the writer calls wake_word if `sleepers` is not
  // 0.
  void on_word(std::atomic<std::uint32_t>& word, std::uint32_t seen,
               std::atomic<std::uint32_t>& sleepers);

  // Waits a little for something that can only be looked at again, such as a GPU's event.
  void on_clock();

  // The caller waits in a way of its own, such as for another thread that drives the links.
  void note_wait() { has_waited_ = true; }

  // Throws as above, without waiting. Called by drivers between steps too.
  void check();

  Millis timeout() const { return timeout_; }

 private:
  bool yield();
  void start_clock();
  void publish();
  void record_wait();
  Millis slice() const;

  Group& group_;
  Millis timeout_;
  bool interruptible_;
  const Call* call_ = nullptr;
  OperationRing::Slot* record_ = nullptr;
  Rank awaited_ = -1;
  std::uint64_t seq_ = 0;
  bool is_published_ = false;
  bool has_waited_ = false;
  int yields_ = 0;
  Time yield_until_{};
  Time deadline_{};  // Set at the first wait: the fast path reads no clock.
};

void wake_word(std::atomic<std::uint32_t>& word);

}  // namespace gradring::transport
