// Membership's silences: who has not been heard for too long, and whether it is rather this rank
// that was frozen or cut off.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/error.h"
#include "transport/membership/membership.h"

namespace gradring::transport {
namespace {

// As many digits of a silence as say something.
double shown(double seconds) {
  return seconds < 10 ? std::round(seconds * 10) / 10 : std::round(seconds);
}

}  // namespace

// Only a beat shows that the next coordinator leads. Until then it may be one that others have
// given up, or are about to, and that lets in whoever comes.
void Membership::note_sign_of_life(Rank from, bool is_beat, Time now) {
  Peer& entry = peer(from);
  if (is_beat) entry.has_spoken = true;
  if (entry.has_spoken || from != coordinator()) entry.last_heard = now;
}

// Where nobody at all is heard it is rather this rank that is cut off. It waits for a sign of life
// of one of them, and then or in the end acts, but tells nobody about the others any more: what it
// sent now would be believed by whoever hears it before giving this rank up.
void Membership::watch_followers(Time now, Actions& actions) {
  std::vector<Rank> silent;
  std::size_t living = 0;
  std::size_t heard = 0;
  Time newest{};
  for (Rank rank = 0; rank < settings_.world_size; ++rank) {
    if (rank == settings_.rank || !is_alive(rank)) continue;
    ++living;
    newest = std::max(newest, peer(rank).last_heard);
    if (now - peer(rank).last_heard <= settings_.heartbeat_timeout / 2) ++heard;
    if (is_silent(rank, now)) silent.push_back(rank);
  }
  if (2 * (heard + 1) <= living + 1) away_at_ = now;
  const bool hears_nobody = living > 1 && now - newest > 2 * beat_interval();
  if (hears_nobody && silent.size() < living) silent.clear();
  if (hears_nobody)
    for (const Rank rank : silent) peer(rank).is_connected = false;
  for (const Rank rank : silent) give_up(rank, now, actions);
  look_for_followers(now, actions);
  spread(wire::Heartbeat{}, -1, actions);
}

// Who died with the coordinator before never comes, and no connection to it ends here. Its host
// knows: without that, everybody's shrink() would wait for a heartbeat timeout. Those who live come
// at once, as a rule.
void Membership::look_for_followers(Time now, Actions& actions) const {
  if (term_began_ == Time{} || now - term_began_ <= beat_interval()) return;
  for (Rank rank = 0; rank < settings_.world_size; ++rank)
    if (is_alive(rank) && !peers_[static_cast<std::size_t>(rank)].is_connected)
      actions.probe.push_back(rank);
}

bool Membership::is_silent(Rank rank, Time now) const {
  const Peer& entry = peers_[static_cast<std::size_t>(rank)];
  return now - entry.last_heard >
         (entry.has_spoken ? settings_.heartbeat_timeout : time_to_agree());
}

// Others may have to find by its silence that the coordinator before is lost, at their next beat.
// And of what it told just before only some may have heard: the others look for the next one where
// these know that nobody is, and come here, or begin to lead, once they have given that rank up.
Millis Membership::time_to_agree() const {
  const Millis to_find = settings_.heartbeat_timeout + 2 * beat_interval();
  Millis time = to_find;
  for (Rank rank = 0; rank < coordinator(); ++rank) {
    const Peer& lost = peers_[static_cast<std::size_t>(rank)];
    if (lost.farewell.has_left || !lost.told_at) continue;  // Who knocks there is refused at once.
    if (*lost.told_at + 2 * settings_.heartbeat_timeout >= term_began_) time += to_find;
  }
  return time;
}

void Membership::give_up(Rank rank, Time now, Actions& actions) {
  const double silence = shown(seconds_between(peer(rank).last_heard, now));
  if (peer(rank).is_connected)
    actions.send.emplace_back(
        rank, wire::Lost{rank, false,
                         str("rank ", settings_.rank, " gave this rank up after ", silence,
                             " s without a heartbeat")});
  actions.disconnect.push_back(rank);
  peer(rank).was_silent = true;
  lose({rank, false,
        str(describe_rank(rank), " sent no heartbeat for ", silence, " s (heartbeat timeout ",
            seconds_between(Time{}, Time{settings_.heartbeat_timeout}),
            " s): it is frozen, or the network to it is down")},
       now, actions);
}

// Where the whole job was stopped (Ctrl-Z, a paused virtual machine), nobody could beat meanwhile.
void Membership::forgive_own_pause(Time now) {
  const auto pause = now - std::exchange(last_tick_, now);
  if (pause < settings_.heartbeat_timeout / 2) return;
  away_at_ = now;
  for (Peer& entry : peers_) entry.last_heard = std::min(now, entry.last_heard + pause);
}

// A coordinator that has just begun to lead was late for some: for those that had left it behind
// before, and those that come while most have not come yet. What it was away for may be long ago
// then, as they have waited for it to lead since.
bool Membership::was_away(Time now) const {
  const auto timeout = settings_.heartbeat_timeout;
  const bool has_just_begun = term_began_ != Time{} && now - term_began_ <= timeout;
  if (has_just_begun && (now == term_began_ || !is_followed_by_most())) return true;
  const Millis ago = has_just_begun ? timeout + time_to_agree() : timeout;
  return now - last_tick_ >= timeout / 2 || (away_at_ && now - *away_at_ <= ago);
}

bool Membership::is_followed_by_most() const {
  std::size_t living = 0;
  std::size_t following = 0;  // This rank too.
  for (Rank rank = 0; rank < settings_.world_size; ++rank) {
    const Peer& entry = peers_[static_cast<std::size_t>(rank)];
    if (!entry.is_alive) continue;
    ++living;
    if (entry.is_connected && !doubts_.contains(rank)) ++following;
  }
  return 2 * following > living;
}

// A next coordinator that was cut off finds by silence that it is alone, and says so to the first
// that it hears again. If that one has not heard a beat of it yet, but most of the others have left
// it and come here, they are right: what they say, else nothing.
const wire::Lost* Membership::why_most_left(Rank leader) const {
  std::size_t living = 0;
  for (Rank rank = 0; rank < settings_.world_size; ++rank)
    if (rank != leader && is_alive(rank)) ++living;
  std::set<Rank> here{settings_.rank};
  const wire::Lost* why = nullptr;
  for (const auto& [teller, lost] : hearsay_) {
    if (lost.rank != leader || !is_alive(teller)) continue;
    here.insert(teller);
    why = &lost;
  }
  const bool has_led = peers_[static_cast<std::size_t>(leader)].has_spoken;
  return !has_led && 2 * here.size() > living ? why : nullptr;
}

// `doubter` has lost this rank, and says so itself or to another one. Which of the two is it that
// was frozen or cut off?
void Membership::hear_doubt(Rank doubter, const std::string& text, Time now, Actions& actions) {
  if (!is_alive(doubter)) return;
  doubts_.try_emplace(doubter, text);
  if (is_coordinator() && was_away(now)) step_down(text, actions);
}

// A coordinator that was not away gives up who doubts it. But if a second one does it was heard by
// few, however well it hears: then, and if it was away, all must follow the others to the next
// coordinator, or there would be two.
void Membership::settle_doubts(Time now, Actions& actions) {
  std::erase_if(doubts_, [&](const auto& doubt) { return !is_alive(doubt.first); });
  if (doubts_.empty() || stepped_down_) return;
  const auto& [doubter, text] = *doubts_.begin();
  const bool is_second = doubts_.size() > 1 ||
                         (last_doubt_at_ && now - *last_doubt_at_ <= settings_.heartbeat_timeout);
  if (is_second || was_away(now)) return step_down(text, actions);
  last_doubt_at_ = now;
  const wire::Lost lost{
      doubter, false,
      str(describe_rank(doubter), " had lost ", describe_rank(settings_.rank),
          ", which others had not: it was frozen, or the network to it was down")};
  if (peer(doubter).is_connected) actions.send.emplace_back(doubter, lost);
  actions.disconnect.push_back(doubter);
  lose(lost, now, actions);
}

void Membership::step_down(const std::string& why, Actions& actions) {
  if (stepped_down_) return;
  stepped_down_ = wire::Lost{settings_.rank, false, why};
  actions.gone.push_back(*stepped_down_);
  spread(*stepped_down_, -1, actions);
}

// What others say of a goodbye that this rank has not heard, though it seems to be connected: true
// if it hears nothing else either.
void Membership::believe_goodbyes(Time now, Actions& actions) {
  const Rank leader = coordinator();
  if (leader == settings_.rank || now - peer(leader).last_heard <= 2 * beat_interval()) return;
  const auto goodbye = std::find_if(hearsay_.begin(), hearsay_.end(), [&](const auto& heard) {
    return heard.second.rank == leader && heard.second.has_left && is_alive(heard.first);
  });
  if (goodbye != hearsay_.end()) lose(wire::Lost(goodbye->second), now, actions);
}

}  // namespace gradring::transport
