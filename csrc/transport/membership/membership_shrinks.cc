// Membership's shrinks: the living members of a communicator agree on who they are, and hear whom
// they wait for meanwhile.
#include <algorithm>

#include "base/config.h"
#include "transport/membership/membership.h"

namespace gradring::transport {
namespace {

constexpr std::size_t kAwaitedShown = 16;  // Of all that are waited for: they are for an error.

}  // namespace

void Membership::shrink(const wire::ShrinkRequest& request, Actions& actions) {
  own_shrinks_.push_back(request);
  if (is_coordinator())
    request_shrink(request, settings_.rank, actions);
  else if (peer(coordinator()).is_connected)
    actions.send.emplace_back(coordinator(), request);
}

void Membership::request_shrink(const wire::ShrinkRequest& request, Rank from, Actions& actions) {
  // A sender may know before this rank does that this rank leads: the request waits for that.
  Shrink& shrink = shrinks_[request.communicator];
  shrink.members = request.members;
  if (std::find(shrink.asked.begin(), shrink.asked.end(), from) == shrink.asked.end())
    shrink.asked.push_back(from);
  settle_shrinks(actions);
  // At once: who asks for it may give up before the next beat.
  const auto pending = shrinks_.find(request.communicator);
  if (is_coordinator() && pending != shrinks_.end())
    tell_of_shrink(who_is_awaited(request.communicator, pending->second), from, actions);
}

void Membership::settle_shrinks(Actions& actions) {
  if (!is_coordinator()) return;
  for (auto entry = shrinks_.begin(); entry != shrinks_.end();) {
    const Shrink& shrink = entry->second;
    wire::ShrinkReply reply{entry->first, {}};
    for (const Rank rank : shrink.members)
      if (is_still_in(entry->first, rank)) reply.survivors.push_back(rank);
    const bool is_complete = who_has_not_asked(entry->first, shrink).empty();
    // What a coordinator before this one has answered stands, even if somebody has died since.
    const auto known = settled_.find(entry->first);
    if (known != settled_.end()) reply = known->second;
    if (!is_complete && known == settled_.end()) {
      ++entry;
      continue;
    }
    for (const Rank rank : shrink.asked)
      if (rank != settings_.rank && is_alive(rank)) actions.send.emplace_back(rank, reply);
    entry = shrinks_.erase(entry);
    settle(reply, actions);
  }
}

void Membership::settle(const wire::ShrinkReply& reply, Actions& actions) {
  std::erase_if(own_shrinks_,
                [&](const auto& own) { return own.communicator == reply.communicator; });
  if (settled_.contains(reply.communicator)) return;
  if (settled_.size() >= limits::kCommunicators) settled_.erase(settled_.begin());
  settled_.emplace(reply.communicator, reply);
  actions.shrunk.push_back(reply);
}

// One that has closed the communicator is none of its members any more, alive or not.
bool Membership::is_still_in(std::uint64_t communicator, Rank rank) const {
  if (rank < 0 || rank >= settings_.world_size || !is_alive(rank)) return false;
  return std::none_of(lefts_.begin(), lefts_.end(), [&](const wire::Left& left) {
    return left.communicator == communicator && left.rank == rank;
  });
}

std::vector<Rank> Membership::who_has_not_asked(std::uint64_t communicator,
                                                const Shrink& shrink) const {
  std::vector<Rank> missing;
  for (const Rank rank : shrink.members)
    if (is_still_in(communicator, rank) &&
        std::find(shrink.asked.begin(), shrink.asked.end(), rank) == shrink.asked.end())
      missing.push_back(rank);
  return missing;
}

wire::ShrinkWait Membership::who_is_awaited(std::uint64_t communicator,
                                            const Shrink& shrink) const {
  wire::ShrinkWait wait{communicator, 0, who_has_not_asked(communicator, shrink)};
  wait.count = static_cast<std::uint32_t>(wait.missing.size());
  wait.missing.resize(std::min(wait.missing.size(), kAwaitedShown));
  return wait;
}

void Membership::tell_of_shrink(const wire::ShrinkWait& wait, Rank to, Actions& actions) {
  if (to == settings_.rank)
    actions.awaited.push_back(wait);
  else if (is_alive(to))
    actions.send.emplace_back(to, wait);
}

void Membership::tell_of_shrinks(Actions& actions) {
  for (const auto& [communicator, shrink] : shrinks_) {
    const wire::ShrinkWait wait = who_is_awaited(communicator, shrink);
    for (const Rank rank : shrink.asked) tell_of_shrink(wait, rank, actions);
  }
}

}  // namespace gradring::transport
