// Monitor's groups: what it hears goes to the communicators that it concerns, or waits until they
// are made.
#include "transport/membership/monitor.h"

namespace gradring::transport {
namespace {

constexpr std::size_t kUnclaimed = 4096;  // Of each kind.

Failure to_failure(const wire::Lost& lost, Rank self) {
  if (lost.rank == self)
    return {ErrorKind::kPeerLost, self, str("this rank was given up by the others: ", lost.text)};
  return {ErrorKind::kPeerLost, lost.rank, lost.text};
}

void mark_left(Group& group, const wire::Left& left) {
  group.mark_left(left.rank, str("rank ", left.rank, " has left: it closed this communicator"));
}

}  // namespace

void Monitor::add(std::shared_ptr<Group> group) {
  groups_.with([&](Groups& groups) {
    // The others may not have closed it yet, and would take this rank's connections for old ones.
    if (groups.closed.contains(group->id) || !groups.by_id.emplace(group->id, group).second)
      throw InvalidArgument(Group::kIsMadeAgain);
    for (const wire::Lost& lost : groups.gone) {
      if (!group->has_member(lost.rank)) continue;
      lost.has_left ? group->mark_left(lost.rank, lost.text) : group->fail(to_failure(lost, rank_));
    }
    std::erase_if(groups.lefts, [&](const wire::Left& left) {
      if (left.communicator == group->id) mark_left(*group, left);
      return left.communicator == group->id;
    });
    std::erase_if(groups.aborts, [&](const wire::Abort& abort) {
      if (abort.communicator == group->id) group->fail(told_by(abort));
      return abort.communicator == group->id;
    });
    for (auto arrival = groups.unclaimed.begin(); arrival != groups.unclaimed.end();) {
      if (arrival->intro.communicator != group->id) {
        ++arrival;
        continue;
      }
      deliver(*group, std::move(*arrival));
      arrival = groups.unclaimed.erase(arrival);
    }
  });
}

void Monitor::remove(std::uint64_t group_id) {
  std::vector<Rank> members;
  groups_.with([&](Groups& groups) {
    groups.closed.insert(group_id);
    const auto group = groups.by_id.find(group_id);
    if (group == groups.by_id.end()) return;
    members = group->second->members;
    group->second->turn_away_arrivals();
    groups.by_id.erase(group);
  });
  if (members.size() < 2) return;
  // Who waits for a connection of this rank's there would not see it close.
  orders_.with([&](Orders& orders) { orders.lefts.push_back({group_id, rank_, members}); });
  wake();
}

void Monitor::tell_groups(const Membership::Actions& actions) {
  groups_.with([&](Groups& groups) {
    groups.gone.insert(groups.gone.end(), actions.gone.begin(), actions.gone.end());
    for (const auto& [id, group] : groups.by_id) {
      for (const wire::Lost& lost : actions.gone) {
        if (!group->has_member(lost.rank)) continue;
        lost.has_left ? group->mark_left(lost.rank, lost.text)
                      : group->fail(to_failure(lost, rank_));
      }
      for (const wire::Abort& abort : actions.aborted) {
        if (abort.communicator == id) group->fail(told_by(abort));
      }
      for (const wire::ShrinkReply& reply : actions.shrunk)
        if (reply.communicator == id) group->settle_shrink(reply.survivors);
      for (const wire::ShrinkWait& wait : actions.awaited)
        if (wait.communicator == id) group->note_shrink_awaits(wait);
    }
    for (const wire::Abort& abort : actions.aborted) {
      const bool is_here =
          groups.by_id.contains(abort.communicator) || groups.closed.contains(abort.communicator);
      if (is_here) continue;
      if (groups.aborts.size() >= kUnclaimed) groups.aborts.pop_front();  // Or of others.
      groups.aborts.push_back(abort);
    }
    for (const wire::Left& left : actions.left) {
      const auto group = groups.by_id.find(left.communicator);
      if (group != groups.by_id.end())
        mark_left(*group->second, left);
      else if (!groups.closed.contains(left.communicator) && groups.lefts.size() < kUnclaimed)
        groups.lefts.push_back(left);
    }
  });
}

std::vector<wire::Abort> Monitor::failed_by(Rank lost) const {
  return groups_.with([&](const Groups& groups) {
    std::vector<wire::Abort> aborts;
    for (const auto& [id, group] : groups.by_id) {
      const Failure failure = group->failure();
      if (failure.kind == ErrorKind::kPeerLost && failure.rank == lost)
        aborts.push_back({id, group->call().seq, rank_, failure});
    }
    return aborts;
  });
}

Failure Monitor::told_by(const wire::Abort& abort) const {
  Failure failure = abort.failure;
  if (abort.origin != rank_) failure.text += str(" (reported by rank ", abort.origin, ")");
  return failure;
}

void Monitor::hand_over(Arrival arrival) {
  const std::uint64_t communicator = arrival.intro.communicator;
  groups_.with([&](Groups& groups) {
    const auto group = groups.by_id.find(communicator);
    if (group != groups.by_id.end())
      deliver(*group->second, std::move(arrival));
    else if (!groups.closed.contains(communicator) && groups.unclaimed.size() < kUnclaimed)
      groups.unclaimed.push_back(std::move(arrival));
  });
}

// Links between ranks that disagree about the members would carry one rank's data as another's.
void Monitor::deliver(Group& group, Arrival arrival) {
  const Rank from = arrival.intro.from;
  if (group.deliver(std::move(arrival))) return;
  const Failure failure = members_differ(rank_, group.made_by, from, "");
  report({group.id, 0, rank_, failure});
  group.fail(failure);
}

}  // namespace gradring::transport
