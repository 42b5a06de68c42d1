// Communicator: the order of operations, and their end. Numbers collectives, runs them one at a
// time in submission order (blocking ones on the calling thread, asynchronous ones on one lazily
// started progress thread), turns what goes wrong into one failure
// that every rank learns, and closes. Callable from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/strided.h"
#include "base/turn.h"
#include "collectives/communicator/point_to_point.h"
#include "collectives/communicator/work.h"
#include "collectives/engine/compressed.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/steps.h"
#include "collectives/records/flight_recorder.h"

namespace gradring::collectives {

// An operation that moves its bytes some other way than over links, such as NCCL. Driven by one
// thread.
class ForeignOperation {
 public:
  virtual ~ForeignOperation() = default;
  // Takes it as far as it will go now; true when it is done. Throws what went wrong; never blocks.
  virtual bool advance() = 0;
  // It has failed, here or elsewhere: nothing of it may go on.
  virtual void give_up() noexcept = 0;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  static std::shared_ptr<Communicator> join(const transport::JoinOptions& options);
  // A job that runs already, at its next grow(). `options.timeout` is how long that is waited for;
  // rank, transport and timeouts are the job's.
  static std::shared_ptr<Communicator> join_running(const transport::JoinOptions& options);
  Communicator(std::shared_ptr<transport::World> world, std::shared_ptr<transport::Group> group,
               std::shared_ptr<FlightRecorder> recorder);
  ~Communicator();

  Rank rank() const { return rank_; }
  Rank world_size() const { return static_cast<Rank>(group_->members.size()); }
  Rank local_rank() const;  // Among the members on this host.
  Rank local_world_size() const;
  Millis timeout() const { return world_->timeout(); }
  std::uint32_t streams() const { return world_->streams(); }  // Of a link between hosts.
  std::string describe(Rank group_rank) const;
  Algorithm algorithm_for(const Operation& operation) const;

  // Blocks until this rank's part is done. Throws any public error. What there is of `packing` is
  // packed into the input, and unpacked from the output, in the operation's turn.
  void run(const Operation& operation, Millis timeout, const Packing& packing = {});
  std::shared_ptr<Work> submit(const Operation& operation, Millis timeout,
                               const Packing& packing = {});
  // Until what was submitted before is done; as if `next`, which has still to be made, waited for
  // its turn.
  void settle(const Operation& next, Millis timeout);
  // Whether anything was; else there is nothing to settle.
  bool has_submitted() const { return has_submitted_.load(std::memory_order_relaxed); }
  // Several collectives in a row, and arithmetic between them, as one.
  std::shared_ptr<Work> submit(const Compressed& what, Millis timeout);
  // In its turn, with the deadline, the records and the failures of all others. `call` is what the
  // ranks must agree on; a send or a receive is between two of them and has no number.
  std::shared_ptr<Work> submit(const Call& call, std::shared_ptr<ForeignOperation> operation,
                               Millis timeout);
  // The same for whatever runs collectives and does something in between. What `carry_out` throws
  // ends the communicator, on every rank.
  using Execute = std::function<void(const Operation&)>;
  std::shared_ptr<Work> submit(const Call& call, std::function<void(const Execute&)> carry_out,
                               Millis timeout);
  std::shared_ptr<Work> submit(const Call& call, std::shared_ptr<Composition> operation,
                               Millis timeout);
  // How to cut `operation` into parts and run them one by one, and get the same bits.
  struct Cutting {
    Request request;                  // The whole: rank, world size and order are filled in.
    Algorithm algorithm;              // Of each part.
    std::uint64_t segment_count = 0;  // Of each part but the last; 0: as in plan.h's Order.
  };
  Cutting cutting_of(const Operation& operation) const;
  bool has_hierarchy() const { return engine_.has_hierarchy(); }
  // Until `work` is done, or `timeout` has passed (TimedOut; the work goes on). Without one its own
  // decides.
  void wait(Work& work, std::optional<Millis> timeout);
  // As PointToPoint has them. `start` begins a blocking one, of this thread, too.
  void start(const std::shared_ptr<Transfer>& transfer, bool in_background);
  void wait(const std::shared_ptr<Transfer>& transfer, Millis timeout);

  // Collective. Memory for `bytes` that every rank can reach, so that reductions in place need no
  // copies; the same number on every rank. nullptr where not all ranks share memory.
  std::shared_ptr<SharedArray> share_memory(std::uint64_t bytes, Millis timeout);

  PointToPoint& point_to_point() { return point_to_point_; }
  FlightRecorder& recorder() { return *recorder_; }
  std::uint64_t id() const { return group_->id; }
  Activity activity() const { return recorder_->activity(*logbook_); }

  // Collective. Members with one color form a communicator, ordered by (key, rank). A negative
  // color gets none.
  std::shared_ptr<Communicator> split(std::int64_t color, std::int64_t key, Millis timeout);
  // Not collective: only the members call it, each with the same group ranks and the same name,
  // which no other group made from this one may have.
  std::shared_ptr<Communicator> subgroup(std::vector<Rank> ranks, const std::string& name);
  // Collective, though nothing is sent: every rank names the part that it is in, and no rank is in
  // two. For steps of a Composition of this communicator. Who has it calls leave() in the end.
  std::unique_ptr<Level> level(std::vector<Rank> ranks);
  // After a PeerLost: the living members agree on who is left and get a new communicator of those.
  // This one is closed.
  std::shared_ptr<Communicator> shrink(Millis timeout);
  // Collective: takes in who has called join_running() by now and waits at the meeting point. Where
  // nobody does it returns this one. Whatever it throws but PeerLost and Mismatch leaves this one
  // open.
  std::shared_ptr<Communicator> grow(Millis timeout);
  std::string meeting_point() const;  // "" where it cannot grow.

  // Before the call `next`: throws what has ended this communicator, once; then Closed with that
  // cause.
  void check_usable(const Call& next) const {
    world_->check_process();
    if (group_->is_failed()) [[unlikely]]
      raise_ended(next);
  }
  // The same for one that was submitted, on the progress thread, where the user does not hear of
  // it: throws what has ended this communicator, every time.
  void check_queued(const Call& next) const;
  // Lingering: for messages in the background that nobody waits for (see PointToPoint::linger).
  // Called by a signal handler inside of a call of this communicator: that call ends it, when it
  // comes out with Closed.
  void close(bool is_lingering = true);
  // To a forked child it is: what the parent's threads may have locked at the fork stays locked.
  bool is_closed() const { return !is_here() || group_->is_failed(); }
  Failure failure() const;  // Why it is closed.
  bool is_here() const { return world_->is_here(); }
  void check_process() const { world_->check_process(); }

 private:
  using DriveLock = std::unique_lock<Turn>;
  // The end of a call in which a signal handler may have called close().
  struct CallEnd {
    Communicator& communicator;
    ~CallEnd() { communicator.leave_if_due(); }
  };

  std::shared_ptr<Work> enqueue(std::shared_ptr<Work> work);
  // Throw TimedOut, with nothing sent and nothing closed, where what comes before `operation` does
  // not move on for `timeout`.
  DriveLock lock_drive(const Operation& operation, Millis timeout);
  void let_queue_go_first(const Operation& operation, Millis timeout);
  [[noreturn]] void raise_ended(const Call& next) const;
  [[noreturn]] void raise_no_turn(const Operation& operation, Millis timeout) const;
  void execute(const Operation& operation, Millis timeout, Ticks queued,
               const Packing& packing = {});
  void execute(const Call& call, ForeignOperation& operation, Millis timeout, Ticks queued);
  void execute(const Call& call, Composition& operation, Millis timeout, Ticks queued);
  template <typename CarryOut>
  void execute(const Call& call, Millis timeout, Ticks queued, const CarryOut& carry_out);
  // Of one that was submitted, or is still queued. By whoever holds drive_.
  Failure failure_of_queued(const Call& next) const;
  // Fails the group. Returns what to raise: on the user's thread, or when it waits for the work.
  Failure fail(const Call& call, std::uint64_t seq, const std::exception_ptr& error,
               Millis timeout);
  // Whether this thread is in a call that has a turn: a signal handler has interrupted it.
  bool is_in_call_here() const { return drive_.is_held_here() || point_to_point_.is_driven_here(); }
  void leave_if_due() {
    if (closing_.load(std::memory_order_relaxed) != std::thread::id{}) [[unlikely]]
      finish_close();
  }
  void finish_close();
  void leave();
  void run_progress();
  std::vector<OperationRecord> queued();
  // What grow() agrees on: from rank 0, or one value of each rank.
  void share_growth(OpKind op, std::span<std::int64_t> values, Millis timeout);
  bool has_grown(const std::vector<std::int64_t>& verdicts, const Failure& own) const;
  std::shared_ptr<Communicator> make_child(std::uint64_t id, std::vector<Rank> members,
                                           std::string made_by = {});

  std::shared_ptr<transport::World> world_;
  std::shared_ptr<transport::Group> group_;
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<Logbook> logbook_;
  Rank rank_;
  bool can_grow_;  // It has all ranks that live. Set before it is shared.
  PointToPoint point_to_point_;

  Turn drive_;  // Held while an operation runs: guards engine_, seq_, splits_, has_left_, note_.
  Engine engine_;
  std::uint64_t seq_ = 0;
  std::uint64_t splits_ = 0;
  bool has_shrunk_ = false;  // The thread's that calls shrink(), as is the next.
  std::optional<Time> calls_out_at_;
  bool has_left_ = false;
  mutable std::optional<std::string> note_;  // Of the failure: its record is written once for all.
  std::atomic<bool> is_leaving_{false};      // close() was called. Guards nothing.
  std::atomic<std::thread::id> closing_{};   // Who has to leave() after its call. Relaxed: its own.

  std::mutex queue_mutex_;  // Guards the next eight; never held while an operation runs.
  std::condition_variable queue_filled_;
  std::condition_variable queue_moved_;
  std::deque<std::shared_ptr<Work>> queue_;
  std::uint64_t submitted_ = 0;
  std::atomic<bool> has_submitted_{false};  // Relaxed, as has_queue_.
  std::uint64_t taken_ = 0;                 // By the progress thread, which holds drive_ meanwhile.
  bool is_stopping_ = false;
  std::thread progress_;
  std::atomic<bool> has_queue_{
      false};  // Relaxed hint for run(): its own earlier submissions are always visible to it.
};

// What to tell the other ranks, and the user, about an error in one operation. Waits a moment for
// the monitor's verdict where the local view cannot tell the cause from an echo of it.
// `operation` is what the text begins with; `seq` is 0 where not all ranks count it.
Failure find_cause(transport::World& world, transport::Group& group, const std::string& operation,
                   std::uint64_t seq, const std::exception_ptr& error, const std::string& progress,
                   Millis timeout);

}  // namespace gradring::collectives
