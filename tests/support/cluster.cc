#include "support/cluster.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gradring::testing {

using transport::Membership;

Cluster::Cluster(Rank ranks) {
  for (Rank rank = 0; rank < ranks; ++rank)
    seats_.push_back({.membership = Membership({rank, ranks, kHeartbeatTimeout, {}}, now_),
                      .calls = {},
                      .inbox = {},
                      .hung_up = {},
                      .gone = {},
                      .contested = {},
                      .aborted = {},
                      .shrunk = {},
                      .awaited = {},
                      .left = {},
                      .warnings = {}});
  for (Rank rank = 1; rank < ranks; ++rank) connect(rank, 0);
}

void Cluster::act(Rank rank, const std::function<void(Membership&, Actions&)>& call) {
  Actions actions;
  call(seat(rank).membership, actions);
  carry_out(rank, std::move(actions));
}

void Cluster::carry_out(Rank rank, Actions actions) {
  Seat& mine = seat(rank);
  mine.gone.insert(mine.gone.end(), actions.gone.begin(), actions.gone.end());
  mine.contested.insert(mine.contested.end(), actions.contested.begin(), actions.contested.end());
  mine.aborted.insert(mine.aborted.end(), actions.aborted.begin(), actions.aborted.end());
  mine.warnings.insert(mine.warnings.end(), actions.warnings.begin(), actions.warnings.end());
  mine.left.insert(mine.left.end(), actions.left.begin(), actions.left.end());
  mine.awaited.insert(mine.awaited.end(), actions.awaited.begin(), actions.awaited.end());
  mine.shrunk.insert(mine.shrunk.end(), actions.shrunk.begin(), actions.shrunk.end());
  for (const auto& [to, message] : actions.send)
    if (are_connected(rank, to)) say(rank, to, message);
  for (const Rank other : actions.disconnect)
    if (are_connected(rank, other)) close(rank, other, other, "closed its control connection");
  for (const Rank other : actions.probe)
    if (seat(other).is_dead)
      act(rank, [&](Membership& m, Actions& more) { m.on_refused(other, now_, more); });
  if (!actions.connect) return;
  if (seat(*actions.connect).is_dead)
    act(rank, [&](Membership& m, Actions& more) { m.on_refused(*actions.connect, now_, more); });
  else if (!seat(*actions.connect).is_frozen)
    connect(rank, *actions.connect);
}

void Cluster::say(Rank from, Rank to, const wire::Message& message) {
  std::vector<std::byte> bytes = wire::encode(message);
  if (seat(to).is_dead) return;
  if (seat(to).is_frozen) {
    seat(to).inbox.emplace_back(from, std::move(bytes));
    return;
  }
  act(to, [&](Membership& m, Actions& more) {
    m.on_message(from, wire::decode_message(bytes), now_, more);
  });
}

void Cluster::connect(Rank from, Rank to) {
  links_.insert({std::min(from, to), std::max(from, to)});
  act(to, [&](Membership& m, Actions& more) { m.on_connected(from, now_, more); });
  act(from, [&](Membership& m, Actions& more) { m.on_connected(to, now_, more); });
}

// Only the side `at` has to be told.
void Cluster::close(Rank a, Rank b, Rank at, const std::string& why) {
  links_.erase({std::min(a, b), std::max(a, b)});
  const Rank other = at == a ? b : a;
  if (seat(at).is_frozen) seat(at).hung_up.insert(other);
  if (seat(at).is_dead || seat(at).is_frozen) return;
  act(at, [&](Membership& m, Actions& more) { m.on_closed(other, now_, why, more); });
}

void Cluster::pass(Millis time) {
  const Millis beat = seats_[0].membership.beat_interval();
  for (const Time end = now_ + time; now_ < end;) {
    now_ += beat;
    for (Rank rank = 0; rank < ranks(); ++rank) {
      if (seat(rank).is_dead || seat(rank).is_frozen) continue;
      act(rank, [&](Membership& m, Actions& more) { m.on_tick(now_, seat(rank).calls, more); });
    }
  }
}

void Cluster::kill(Rank rank) {
  seat(rank).is_dead = true;
  for (Rank other = 0; other < ranks(); ++other)
    if (are_connected(rank, other)) close(rank, other, other, "closed its control connection");
}

void Cluster::leave(Rank rank) {
  Actions actions;
  seat(rank).membership.leave(actions);
  seat(rank).is_dead = true;  // It looks at nothing any more.
  carry_out(rank, std::move(actions));
  kill(rank);
}

void Cluster::thaw(Rank rank) {
  seat(rank).is_frozen = false;
  while (!seat(rank).inbox.empty()) {
    const auto [from, bytes] = seat(rank).inbox.front();
    seat(rank).inbox.pop_front();
    act(rank, [&, sender = from, &message = bytes](Membership& m, Actions& more) {
      m.on_message(sender, wire::decode_message(message), now_, more);
    });
  }
  for (const Rank other : std::exchange(seat(rank).hung_up, {}))
    act(rank, [&](Membership& m, Actions& more) { m.on_closed(other, now_, "closed", more); });
}

void Cluster::cut(Rank a, Rank b) {
  close(a, b, a, "closed its control connection");
  close(a, b, b, "closed its control connection");
}

void Cluster::abort(Rank rank, std::uint64_t communicator, const Failure& failure) {
  act(rank, [&](Membership& m, Actions& more) { m.abort({communicator, 1, rank, failure}, more); });
}

void Cluster::leave_group(Rank rank, std::uint64_t communicator, std::vector<Rank> members) {
  act(rank, [&](Membership& m, Actions& more) {
    m.leave_group({communicator, rank, std::move(members)}, more);
  });
}

void Cluster::shrink(Rank rank, std::uint64_t communicator, std::vector<Rank> members) {
  act(rank,
      [&](Membership& m, Actions& more) { m.shrink({communicator, std::move(members)}, more); });
}

std::vector<Rank> Cluster::gone(Rank rank) {
  std::vector<Rank> found;
  for (const wire::Lost& lost : seat(rank).gone) found.push_back(lost.rank);
  return found;
}

}  // namespace gradring::testing
