// Membership: what the coordinator finds when it compares what the ranks say they are calling.
#include <map>
#include <utility>

#include "base/config.h"
#include "base/error.h"
#include "transport/membership/membership.h"

namespace gradring::transport {
namespace {

std::string describe_last(const wire::CallState& state) {
  if (state.seq == 0) return "";
  const bool is_known = state.in_progress || state.call != Call{};  // Else it may be a barrier.
  return str(state.in_progress ? ", which is in " : ", whose last was ",
             is_known ? describe(state.call, state.seq) : str('#', state.seq));
}

}  // namespace

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
                       "; all ranks must make the same calls in the same order",
                       advice_on(*one.call, *other.call))};
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

// Nobody need have failed: a rank reads its data for long, writes a checkpoint, or waits for
// something else. Whoever looks at the job sees it stand still; this says for whom. Told after a
// minute, two, four, and so on.
void Membership::note_stalls(Time now, Actions& actions) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, Stall> found;
  for (const Peer& other : peers_) {
    if (!other.is_alive) continue;
    for (const wire::CallState& state : other.calls) {
      const auto key = std::pair(state.communicator, state.seq);
      if (!state.in_progress || aborts_.contains(state.communicator) || found.contains(key))
        continue;
      const auto known = stalls_.find(key);
      Stall stall = known == stalls_.end() ? Stall{now, now + limits::kStallTime} : known->second;
      if (now >= stall.told_at) {
        const std::string text = describe_stall(state, now - stall.since);
        if (!text.empty()) actions.warnings.push_back(text);
        stall.told_at = now + (now - stall.since);
      }
      found.emplace(key, stall);
    }
  }
  stalls_ = std::move(found);
}

// Empty where all have begun: then it moves, or is found otherwise.
std::string Membership::describe_stall(const wire::CallState& waiting, Time::duration time) const {
  constexpr int kNamed = 8;
  std::string missing;
  int count = 0;
  for (Rank rank = 0; rank < settings_.world_size; ++rank) {
    const Peer& other = peers_[static_cast<std::size_t>(rank)];
    if (!other.is_alive) continue;
    for (const wire::CallState& state : other.calls) {
      if (state.communicator != waiting.communicator || state.seq >= waiting.seq) continue;
      if (++count > kNamed) continue;
      missing += str(missing.empty() ? "" : ", ", describe_rank(rank), describe_last(state));
    }
  }
  if (count == 0) return "";
  if (count > kNamed) missing += str(" and ", count - kNamed, " more");
  return str(describe(waiting.call, waiting.seq), " has waited ",
             std::chrono::duration_cast<std::chrono::seconds>(time).count(), " s for ", missing);
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
