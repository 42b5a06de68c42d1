#include "transport/membership/membership.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/error.h"

namespace gradring::transport {
namespace {

bool is_member(const wire::Left& left, Rank rank) {
  return std::find(left.members.begin(), left.members.end(), rank) != left.members.end();
}

// A member need not hear who the others are. Where all of n ranks close a communicator, that makes
// n^2 short messages instead of n^2 long ones.
wire::Left told_to(Rank member, const wire::Left& left) {
  return {left.communicator, left.rank, {member}};
}

}  // namespace

Failure members_differ(Rank rank, const std::string& mine, Rank other, const std::string& theirs) {
  if (mine.empty())
    return {ErrorKind::kMismatch, -1,
            str("rank ", rank, " and rank ", other,
                " count different ranks as the members of one communicator")};
  return {ErrorKind::kMismatch, -1,
          str("the ranks called subgroup with one name but different ranks: rank ", rank,
              " called ", mine, ", rank ", other, " ",
              theirs.empty() ? "gave others or another order" : str("called ", theirs),
              "; all members must give the same ranks in the same order")};
}

Membership::Membership(Settings settings, Time now) : settings_(std::move(settings)) {
  peers_.resize(static_cast<std::size_t>(settings_.world_size));
  settings_.addresses.resize(peers_.size());
  last_tick_ = now;
  for (Peer& peer : peers_) peer.last_heard = now;
  peer(settings_.rank).is_connected = true;
}

Rank Membership::coordinator() const {
  for (Rank rank = 0; rank < settings_.world_size; ++rank)
    if (is_alive(rank)) return rank;
  return settings_.rank;
}

Millis Membership::beat_interval() const {
  return std::clamp(settings_.heartbeat_timeout / 5, Millis{20}, Millis{500});
}

void Membership::on_connected(Rank who, Time now, Actions& actions) {
  Peer& entry = peer(who);
  if (!entry.is_alive) {  // It was given up; it must not come back under the same rank.
    actions.send.emplace_back(who, wire::Lost{who, entry.farewell.has_left, entry.farewell.text});
    actions.disconnect.push_back(who);
    return;
  }
  entry.is_connected = true;
  note_sign_of_life(who, false, now);
  if (stepped_down_)
    actions.send.emplace_back(who, *stepped_down_);
  else if (is_coordinator())
    actions.send.emplace_back(who, wire::Heartbeat{});  // It need not wait for the next to know.
  // Whoever comes to a new coordinator may not have heard who else is gone, nor have its requests
  // been answered.
  for (const Peer& other : peers_)
    if (!other.is_alive) {
      actions.send.emplace_back(who, other.farewell);
      if (other.goodbye) actions.send.emplace_back(who, *other.goodbye);
    }
  for (const auto& [communicator, abort] : aborts_) actions.send.emplace_back(who, abort);
  // Before who left: a survivor that has dropped the communicator since is one all the same.
  if (who == coordinator())
    for (const auto& [communicator, reply] : settled_) actions.send.emplace_back(who, reply);
  for (const wire::Left& left : lefts_)
    if (who == coordinator() && left.rank == settings_.rank)
      actions.send.emplace_back(who, left);
    else if (who != coordinator() && is_member(left, who))
      actions.send.emplace_back(who, told_to(who, left));
  if (who == coordinator())
    for (const auto& request : own_shrinks_) actions.send.emplace_back(who, request);
  if (who == coordinator())
    for (const auto& [teller, lost] : hearsay_)
      if (lost.rank == who && is_alive(teller))
        actions.send.emplace_back(who, wire::Doubt{teller, lost.text});
  if (is_leaving_) actions.send.emplace_back(who, wire::Bye{});  // It came too late for leave().
}

void Membership::on_closed(Rank who, Time now, const std::string& why, Actions& actions) {
  Peer& entry = peer(who);
  entry.is_connected = false;
  if (!entry.is_alive) return;
  if (is_coordinator() && doubts_.contains(who)) return;  // The next tick settles that.
  if (is_coordinator() || who == coordinator())
    lose({who, false, str(describe_rank(who), " ", why)}, now, actions);
}

void Membership::on_refused(Rank who, Time now, Actions& actions) {
  if (is_coordinator() && peer(who).is_connected) return;  // It has come meanwhile.
  peer(who).is_connected = false;
  lose({who, true, str(describe_rank(who), " has ended")}, now, actions);
}

void Membership::on_message(Rank from, const wire::Message& message, Time now, Actions& actions) {
  if (!is_alive(from)) return;  // It was given up; what it believes since then counts for nobody.
  note_sign_of_life(from, std::holds_alternative<wire::Heartbeat>(message), now);
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    peer(from).calls = beat->calls;
  } else if (const auto* lost = std::get_if<wire::Lost>(&message)) {
    if (lost->rank < 0 || lost->rank >= settings_.world_size)
      throw ProtocolError("lost: no such rank");
    hear_lost(*lost, from, now, actions);
  } else if (const auto* abort = std::get_if<wire::Abort>(&message)) {
    handle_abort(*abort, from, actions);
  } else if (std::holds_alternative<wire::Bye>(message)) {
    lose({from, true,
          str(describe_rank(from), " has left", whom_it_lost(from),
              ": it closed its communicator or its script ended")},
         now, actions);
    actions.disconnect.push_back(from);
  } else if (const auto* request = std::get_if<wire::ShrinkRequest>(&message)) {
    request_shrink(*request, from, actions);
  } else if (const auto* reply = std::get_if<wire::ShrinkReply>(&message)) {
    settle(*reply, actions);
    settle_shrinks(actions);
  } else if (const auto* wait = std::get_if<wire::ShrinkWait>(&message)) {
    actions.awaited.push_back(*wait);
  } else if (const auto* left = std::get_if<wire::Left>(&message)) {
    hear_left(*left, from, actions);
  } else if (const auto* doubt = std::get_if<wire::Doubt>(&message)) {
    const bool is_third = doubt->rank != settings_.rank && doubt->rank != from;
    if (doubt->rank < 0 || doubt->rank >= settings_.world_size || !is_third)
      throw ProtocolError("doubt: no such rank");
    hear_doubt(doubt->rank, doubt->text, now, actions);
  }
}

// A rank that is cut off from the coordinator alone fails, and often leaves before the others find
// anything wrong: then this is why.
std::string Membership::whom_it_lost(Rank from) const {
  std::string text;
  for (const auto& [teller, lost] : hearsay_)
    if (teller == from)
      text += str(text.empty() ? ", having lost " : ", ", describe_rank(lost.rank));
  return text;
}

void Membership::on_tick(Time now, const std::vector<wire::CallState>& calls, Actions& actions) {
  forgive_own_pause(now);
  peer(settings_.rank).last_heard = now;
  peer(settings_.rank).calls = calls;
  believe_goodbyes(now, actions);
  if (is_coordinator()) {
    settle_doubts(now, actions);
    watch_followers(now, actions);
    check_members(actions);
    check_calls(actions);
    note_stalls(now, actions);
    tell_of_shrinks(actions);
    return;
  }
  const Rank leader = coordinator();
  if (is_silent(leader, now))
    give_up(leader, now, actions);
  else if (peer(leader).is_connected)
    actions.send.emplace_back(leader, beat(calls));
  else
    actions.connect = leader;  // Again: it may be about to become reachable.
}

// Of more communicators than a heartbeat holds those in a call come first: a rank that others wait
// for is found by them. The rest take turns, as their members may still differ from the others'.
wire::Heartbeat Membership::beat(const std::vector<wire::CallState>& calls) {
  if (calls.size() <= wire::kCallsPerHeartbeat) return {calls};
  wire::Heartbeat told;
  std::vector<const wire::CallState*> idle;
  for (const wire::CallState& state : calls) {
    if (!state.in_progress)
      idle.push_back(&state);
    else if (told.calls.size() < wire::kCallsPerHeartbeat)
      told.calls.push_back(state);
  }
  const std::size_t room = std::min(wire::kCallsPerHeartbeat - told.calls.size(), idle.size());
  for (std::size_t i = 0; i < room; ++i) told.calls.push_back(*idle[next_idle_++ % idle.size()]);
  return told;
}

// The coordinator's word counts, and a coordinator's before it, which its followers bring to the
// next one: they have left that rank behind, so all must. Anybody else's may come from a rank that
// is itself cut off, but for a goodbye: nobody takes silence for one.
void Membership::hear_lost(const wire::Lost& lost, Rank from, Time now, Actions& actions) {
  if (lost.rank == settings_.rank) {
    if (from != coordinator())
      hear_doubt(from, lost.text, now, actions);
    else if (const auto* left = why_most_left(from))
      lose(wire::Lost(*left), now, actions);
    else
      actions.gone.push_back(lost);  // This rank was frozen or cut off.
    return;
  }
  const bool is_here = peer(lost.rank).is_connected;
  if (from == coordinator() || (!is_here && (is_coordinator() || lost.has_left))) {
    if (is_alive(lost.rank)) peer(lost.rank).told_at = now;
    lose(lost, now, actions);
  } else if (is_coordinator()) {
    const bool had_leader = term_began_ != Time{};
    if (!had_leader || lost.has_left || !is_alive(lost.rank) || doubts_.contains(from)) return;
    actions.send.emplace_back(lost.rank, lost);
    actions.disconnect.push_back(lost.rank);
    lose(lost, now, actions);
  } else {
    hearsay_.emplace_back(from, lost);  // Unless `from` turns out to lead.
    if (lost.rank == coordinator() && is_here)
      actions.send.emplace_back(lost.rank, wire::Doubt{from, lost.text});
  }
}

void Membership::lose(wire::Lost lost, Time now, Actions& actions) {
  Peer& entry = peer(lost.rank);
  if (!entry.is_alive) return contest(lost, now, actions);
  const bool was_coordinator = lost.rank == coordinator();
  const bool tells_others = is_coordinator();
  entry.is_alive = false;
  entry.farewell = lost;
  std::erase_if(hearsay_, [&](const auto& heard) { return heard.first == lost.rank; });
  actions.gone.push_back(lost);
  if (tells_others) {
    spread(lost, lost.rank, actions);
  } else if (entry.is_connected && !was_coordinator) {
    // It came here because it had lost the coordinator, which has lost it too.
    actions.send.emplace_back(lost.rank, lost);
    actions.disconnect.push_back(lost.rank);
  }
  entry.is_connected = false;
  if (was_coordinator) {
    // A new term: everybody gets a full heartbeat timeout to find the new coordinator.
    term_began_ = now;
    for (Peer& other : peers_) {
      other.last_heard = now;
      other.has_spoken = false;
    }
    if (is_coordinator())
      take_over(actions);
    else if (!peer(coordinator()).is_connected)
      actions.connect = coordinator();
    for (const auto& [from, heard] : std::exchange(hearsay_, {}))
      if (is_alive(from)) hear_lost(heard, from, now, actions);
    if (is_coordinator()) settle_doubts(now, actions);
  }
  settle_shrinks(actions);
}

// It died in the middle of its goodbye, or this rank was cut off meanwhile. Those who have heard it
// would wait for this rank, whose calls have failed.
void Membership::contest(const wire::Lost& lost, Time now, Actions& actions) {
  Peer& entry = peer(lost.rank);
  if (!lost.has_left || entry.farewell.has_left || entry.goodbye) return;
  if (entry.was_silent) away_at_ = now;  // It had spoken; this rank has not heard it.
  entry.goodbye = lost;
  actions.contested.push_back(lost.rank);
  if (is_coordinator()) spread(lost, lost.rank, actions);  // For others who have lost it.
}

// Who came here before this rank knew that it leads has not heard what it has heard since.
void Membership::take_over(Actions& actions) {
  spread(wire::Heartbeat{}, -1, actions);
  for (const Peer& other : peers_)
    if (!other.is_alive) spread(other.farewell, -1, actions);
  for (const auto& [communicator, abort] : aborts_) spread(abort, -1, actions);
  for (const wire::Left& left : lefts_) tell_members(left, left.rank, actions);
  for (const auto& request : std::vector(own_shrinks_))
    request_shrink(request, settings_.rank, actions);
}

void Membership::spread(const wire::Message& message, Rank except, Actions& actions) {
  for (Rank rank = 0; rank < settings_.world_size; ++rank)
    if (rank != settings_.rank && rank != except && is_alive(rank) && peer(rank).is_connected)
      actions.send.emplace_back(rank, message);
}

void Membership::abort(const wire::Abort& abort, Actions& actions) {
  handle_abort(abort, settings_.rank, actions);
}

void Membership::handle_abort(wire::Abort abort, Rank from, Actions& actions) {
  const bool is_known = aborts_.contains(abort.communicator);
  if (aborts_.size() >= limits::kCommunicators && !is_known) aborts_.erase(aborts_.begin());
  if (!is_coordinator()) {
    aborts_[abort.communicator] = abort;
    if (from == settings_.rank)
      actions.send.emplace_back(coordinator(), abort);
    else
      actions.aborted.push_back(abort);
    return;
  }
  if (is_known) return;  // Everybody has been told; the first cause stands.
  if (abort.failure.kind == ErrorKind::kTimedOut) abort.failure.text += who_is_not_in(abort);
  aborts_[abort.communicator] = abort;
  spread(abort, -1, actions);
  actions.aborted.push_back(abort);
}

void Membership::leave(Actions& actions) {
  is_leaving_ = true;
  spread(wire::Bye{}, -1, actions);  // Also to ranks that see in this one the next coordinator.
}

void Membership::leave_group(const wire::Left& left, Actions& actions) {
  hear_left(left, settings_.rank, actions);
}

void Membership::hear_left(const wire::Left& left, Rank from, Actions& actions) {
  const auto known = std::find_if(lefts_.begin(), lefts_.end(), [&](const wire::Left& other) {
    return other.communicator == left.communicator && other.rank == left.rank;
  });
  if (known != lefts_.end()) {
    // This rank was told by a coordinator that is gone now. Who left says again whom it concerns.
    if (left.members.size() <= known->members.size()) return;
    *known = left;
  } else {
    if (lefts_.size() >= limits::kCommunicators) lefts_.pop_front();
    lefts_.push_back(left);
    if (from != settings_.rank && is_member(left, settings_.rank)) actions.left.push_back(left);
  }
  if (is_coordinator())
    tell_members(left, from, actions);
  else if (from == settings_.rank && peer(coordinator()).is_connected)
    actions.send.emplace_back(coordinator(), left);
  settle_shrinks(actions);
}

void Membership::tell_members(const wire::Left& left, Rank except, Actions& actions) {
  for (const Rank rank : left.members) {
    if (rank < 0 || rank >= settings_.world_size || rank == settings_.rank || rank == except)
      continue;
    if (is_alive(rank) && peer(rank).is_connected)
      actions.send.emplace_back(rank, told_to(rank, left));
  }
}

std::string Membership::describe_rank(Rank rank) const {
  const std::string& address = settings_.addresses[static_cast<std::size_t>(rank)];
  return address.empty() ? str("rank ", rank) : str("rank ", rank, " (", address, ")");
}

}  // namespace gradring::transport
