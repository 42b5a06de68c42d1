// Membership: what the coordinator finds when it compares what the ranks say they are calling.
#include <map>
#include <utility>

#include "base/error.h"
#include "transport/membership/membership.h"

namespace gradring::transport {

// Two ranks that are in the same operation of the same communicator with different calls wait for
// each other for ever when neither sends to the other; the links' headers cannot show that, the
// heartbeats can. A rank that only gave in its call, such as the root of a broadcast, may be some
// calls further: what it called before is compared too.
void Membership::check_calls(Actions& actions) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, Calling> waiting;
  const auto compare = [&](const wire::CallState& state, std::uint64_t seq, Calling mine) {
    const auto found = waiting.find({state.communicator, seq});
    if (found != waiting.end() && *found->second.call != *mine.call)
      report_difference(state, seq, found->second, mine, actions);
  };
  const auto for_each_in_call = [&](const auto& act) {
    for (Rank rank = 0; rank < settings_.world_size; ++rank) {
      if (!is_alive(rank)) continue;
      for (const wire::CallState& state : peer(rank).calls)
        if (state.in_progress && !aborts_.contains(state.communicator)) act(rank, state);
    }
  };
  for_each_in_call([&](Rank rank, const wire::CallState& state) {
    const Calling mine{rank, &state.call};
    if (!waiting.try_emplace({state.communicator, state.seq}, mine).second)
      compare(state, state.seq, mine);
  });
  for_each_in_call([&](Rank rank, const wire::CallState& state) {
    std::uint64_t seq = state.seq;
    for (const Call& call : state.before) compare(state, --seq, {rank, &call});
  });
}

void Membership::report_difference(const wire::CallState& state, std::uint64_t seq, Calling one,
                                   Calling other, Actions& actions) {
  if (other.rank < one.rank) std::swap(one, other);
  wire::Abort abort;
  abort.communicator = state.communicator;
  abort.seq = seq;
  abort.origin = settings_.rank;
  abort.failure = {ErrorKind::kMismatch, -1,
                   str("rank ", one.rank, " called ", describe(*one.call, seq), " but rank ",
                       other.rank, " called ", describe(*other.call, seq),
                       "; all ranks must make the same calls in the same order")};
  handle_abort(abort, settings_.rank, actions);
}

// Two ranks that count different ranks as the members of a communicator may never connect: each
// waits for the other to do so, or one has finished without it. So those that wait are compared
// with all.
void Membership::check_members(Actions& actions) {
  std::map<std::uint64_t, std::pair<Rank, const wire::CallState*>> waiting;
  for (Rank rank = 0; rank < settings_.world_size; ++rank)
    if (is_alive(rank))
      for (const wire::CallState& state : peer(rank).calls)
        if (state.in_progress && !aborts_.contains(state.communicator))
          waiting.try_emplace(state.communicator, rank, &state);
  if (waiting.empty()) return;
  for (Rank rank = 0; rank < settings_.world_size; ++rank) {
    if (!is_alive(rank)) continue;
    for (const wire::CallState& state : peer(rank).calls) {
      const auto found = waiting.find(state.communicator);
      if (found == waiting.end() || aborts_.contains(state.communicator)) continue;
      const auto& [other_rank, other] = found->second;
      if (other->members_hash == state.members_hash) continue;
      const Failure failure = members_differ(other_rank, other->made_by, rank, state.made_by);
      handle_abort({state.communicator, 0, settings_.rank, failure}, settings_.rank, actions);
    }
  }
}

// By what they told last. Where the one that has given up had not begun it by then either, that is
// older than the operation and says nothing.
std::string Membership::who_is_not_in(const wire::Abort& abort) const {
  std::string missing;
  bool has_begun = false;
  for (Rank rank = 0; rank < settings_.world_size; ++rank) {
    if (!is_alive(rank)) continue;
    for (const wire::CallState& state : peers_[static_cast<std::size_t>(rank)].calls) {
      if (state.communicator != abort.communicator) continue;
      if (rank == abort.origin) has_begun = state.seq >= abort.seq;
      if (state.seq < abort.seq) missing += str(missing.empty() ? "" : ", ", rank);
    }
  }
  return missing.empty() || !has_begun
             ? ""
             : str("; not in this operation at the last heartbeat: rank ", missing);
}

}  // namespace gradring::transport
