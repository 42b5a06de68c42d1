// Cluster: the Memberships of a whole job, connected by hand in one thread: every message arrives
// at once, through encode and decode, unless its receiver is frozen. For the tests of membership.h;
// the simulation (sim/) is where messages are late and lost.
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "transport/membership/membership.h"

namespace gradring::testing {

class Cluster {
 public:
  static constexpr Millis kHeartbeatTimeout{1000};

  struct Seat {
    transport::Membership membership;
    bool is_dead = false;
    bool is_frozen = false;
    std::vector<wire::CallState> calls;
    std::deque<std::pair<Rank, std::vector<std::byte>>> inbox;  // While frozen.
    std::set<Rank> hung_up;                                     // The same.
    // What its user was told.
    std::vector<wire::Lost> gone;
    std::vector<Rank> contested;
    std::vector<wire::Abort> aborted;
    std::vector<wire::ShrinkReply> shrunk;
    std::vector<wire::ShrinkWait> awaited;
    std::vector<wire::Left> left;
    std::vector<std::string> warnings;
  };

  explicit Cluster(Rank ranks);

  Seat& seat(Rank rank) { return seats_[static_cast<std::size_t>(rank)]; }
  Rank ranks() const { return static_cast<Rank>(seats_.size()); }

  // Lets time pass, with a tick of every running rank in each beat.
  void pass(Millis time);

  void kill(Rank rank);
  void leave(Rank rank);
  void freeze(Rank rank) { seat(rank).is_frozen = true; }
  void thaw(Rank rank);
  void cut(Rank a, Rank b);  // Their control connection is reset.
  // `from` goes to `to` as to a coordinator, whatever it believes.
  void connect(Rank from, Rank to);
  void abort(Rank rank, std::uint64_t communicator, const Failure& failure);
  void leave_group(Rank rank, std::uint64_t communicator, std::vector<Rank> members);
  void shrink(Rank rank, std::uint64_t communicator, std::vector<Rank> members);
  void say(Rank from, Rank to, const wire::Message& message);

  bool are_connected(Rank a, Rank b) const {
    return links_.contains({std::min(a, b), std::max(a, b)});
  }
  std::vector<Rank> gone(Rank rank);  // As rank numbers, in the order its user was told.

 private:
  using Actions = transport::Membership::Actions;
  void carry_out(Rank rank, Actions actions);
  void act(Rank rank, const std::function<void(transport::Membership&, Actions&)>& call);
  void close(Rank a, Rank b, Rank at, const std::string& why);

  std::vector<Seat> seats_;
  std::set<std::pair<Rank, Rank>> links_;
  Time now_ = Time{} + std::chrono::hours(1);
};

}  // namespace gradring::testing
