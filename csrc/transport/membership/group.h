// Group: what the world tells one communicator about itself: new connections, lost members,
// failure. Written by the monitor thread, read by the threads that drive the communicator; every
// field is guarded or a commented atomic.
#pragma once

#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/guarded.h"
#include "transport/joining/door.h"
#include "transport/links/fd.h"
#include "wire/messages.h"

namespace gradring::transport {

// The id of a group made from another one; every member computes the same. Two of one job collide
// with a chance of 2^-64.
std::uint64_t derive_id(std::uint64_t parent, std::uint64_t nth, std::uint64_t salt);

std::uint64_t hash_of_members(const std::vector<Rank>& members);  // And of their order.

class Group {
 public:
  Group(std::uint64_t group_id, std::vector<Rank> world_ranks, std::string maker = {})
      : id(group_id),
        members(std::move(world_ranks)),
        members_hash(hash_of_members(members)),
        made_by(std::move(maker)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // What is wrong where a second one has the id of another, be that open or closed.
  static constexpr const char* kIsMadeAgain =
      "a communicator of this name was made before; give each a name of its own";

  const std::uint64_t id;
  const std::vector<Rank> members;  // World ranks, by group rank.
  const std::uint64_t members_hash;
  const std::string made_by;  // As in wire::CallState.

  bool has_member(Rank world_rank) const;

  // How often a wait looks again before it yields for the first time: 0 where ranks share
  // processors on this host. And how many of these all ranks of the host may use. Set before the
  // group is shared.
  int looks_before_yield = 0;
  int processors = 1;

  // A yield has just given the core to strangers for long: waits sleep at once for a while. For
  // longer each time if strangers are back after little time and few yields: a passer-by should
  // cost little (the process that starts the ranks, or one of them between two operations), a
  // process that stays should cost few yields.
  void note_theft(Time now);
  // A wait is about to yield.
  void note_yield() {
    yields_.store(yields_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  Time sleep_until() const {
    return Time{Clock::duration{sleep_until_.load(std::memory_order_relaxed)}};
  }
  // A call is over. After several in a row that found all they needed, waits yield again: the core
  // was not lost to a stranger but to a rank that ran ahead, as the root of broadcasts does. Who is
  // behind it would be woken for each message; a yield lets it send many, to be taken together.
  void note_call(bool has_waited) {
    if (sleep_until_.load(std::memory_order_relaxed) != 0) count_call(has_waited);
  }

  // The first failure wins; later ones are echoes of it.
  void fail(const Failure& failure);
  bool is_failed() const { return is_failed_.load(std::memory_order_acquire); }
  Failure failure() const;
  // `tell` hears of the first failure, at once if there is one already, on the thread that brings
  // it; it must not block.
  void on_failure(std::function<void(const Failure&)> tell);
  // The user hears of the failure now. True the first time.
  bool note_told() { return !is_told_.exchange(true, std::memory_order_relaxed); }

  void mark_left(Rank world_rank, const std::string& text);
  bool has_leavers() const { return has_leavers_.load(std::memory_order_acquire); }
  std::optional<std::string> left(Rank world_rank) const;

  // False: it comes from a rank that counts others as the members, and is closed.
  bool deliver(Arrival arrival);
  void turn_away_arrivals();  // Nobody will take them any more.
  // The connections of a kind from a member, if so many have come; else none.
  std::vector<Arrival> take(Purpose purpose, std::uint8_t lane, Rank from, std::size_t count = 1);

  // A rank that waits tells its peers of so many operations before the one it is in.
  static constexpr std::size_t kCallsTold = wire::kCallsBefore;

  // The operation this rank is in, for the heartbeat. Starting one costs one store; what it is, and
  // what came before it, is said only when it has to wait. By whoever drives it, as the next two.
  void begin_call(std::uint64_t seq) { seq_.store(seq, std::memory_order_relaxed); }
  void note_finished(std::uint64_t seq, const Call& call) {
    finished_[seq % finished_.size()] = {seq, call};
  }
  // The operation moves on.
  void note_progress() {
    progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // Changes whenever an operation begins or moves on.
  std::uint64_t progress() const {
    return seq_.load(std::memory_order_relaxed) + progress_.load(std::memory_order_relaxed);
  }
  void publish_call(const Call& call, std::uint64_t seq);
  void end_call();
  wire::CallState call() const;

  void note_shrink_awaits(wire::ShrinkWait wait);
  wire::ShrinkWait shrink_awaits() const;  // Whom it waits for, as far as this rank has heard.
  void settle_shrink(std::vector<Rank> survivors);
  std::optional<std::vector<Rank>> survivors() const;

  int wake_fd() const { return wake_.get(); }
  void wake();
  void clear_wake();

 private:
  struct State {
    Failure failure;
    std::map<Rank, std::string> leavers;
    std::vector<Arrival> arrivals;
    wire::CallState call;  // The last published.
    wire::ShrinkWait shrink_awaits;
    std::optional<std::vector<Rank>> survivors;
    std::function<void(const Failure&)> tell;
  };
  void count_call(bool has_waited);

  Guarded<State> state_;
  struct Finished {
    std::uint64_t seq = 0;  // 0: none yet.
    Call call;
  };
  // The last ones, by seq; one more than are told, so that it is a power of two. Whoever drives has
  // them.
  std::array<Finished, kCallsTold + 1> finished_{};
  std::atomic<Clock::rep> sleep_until_{0};       // A hint: relaxed, as are the next four.
  std::atomic<Clock::rep> last_sleep_until_{0};  // The same, but never taken back.
  std::atomic<Clock::rep> sleep_time_{0};
  std::atomic<std::uint32_t> yields_{0};  // Since the last theft.
  std::atomic<int> calls_without_wait_{0};
  std::atomic<bool> is_failed_{
      false};  // Set (release) after state_.failure, so that the fast path needs no lock.
  std::atomic<bool> is_told_{false};      // Guards nothing.
  std::atomic<bool> has_leavers_{false};  // The same for state_.leavers.
  std::atomic<std::uint64_t> seq_{0};     // A statistic: relaxed, as is the next.
  std::atomic<std::uint64_t> progress_{0};
  Fd wake_;  // Readable: something above changed.
};

}  // namespace gradring::transport
