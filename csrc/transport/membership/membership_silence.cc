// Membership's silences: who has not been heard for too long, and whether it is rather this rank
// that was frozen or cut off.
#include <algorithm>
#include <iomanip>
#include <utility>

#include "base/error.h"
#include "transport/membership/membership.h"

namespace gradring::transport {

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
  spread(wire::Heartbeat{}, -1, actions);
}

bool Membership::is_silent(Rank rank, Time now) const {
  const Peer& entry = peers_[static_cast<std::size_t>(rank)];
  return now - entry.last_heard >
         (entry.has_spoken ? settings_.heartbeat_timeout : time_to_agree());
}

// Of what a coordinator told just before it was lost itself, only some may have heard. The others
// look for the next one where these know that nobody is, and come here, or begin to lead, once they
// have given that rank up.
Millis Membership::time_to_agree() const {
  Millis time = settings_.heartbeat_timeout;
  for (Rank rank = 0; rank < coordinator(); ++rank) {
    const Peer& lost = peers_[static_cast<std::size_t>(rank)];
    if (lost.farewell.has_left || !lost.told_at) continue;  // Who knocks there is refused at once.
    if (*lost.told_at + 2 * settings_.heartbeat_timeout >= term_began_)
      time += settings_.heartbeat_timeout + 2 * beat_interval();
  }
  return time;
}

void Membership::give_up(Rank rank, Time now, Actions& actions) {
  const double silence = seconds_between(peer(rank).last_heard, now);
  if (peer(rank).is_connected)
    actions.send.emplace_back(
        rank, wire::Lost{rank, false,
                         str("rank ", settings_.rank, " gave this rank up after ",
                             std::setprecision(2), silence, " s without a heartbeat")});
  actions.disconnect.push_back(rank);
  lose({rank, false,
        str(describe_rank(rank), " sent no heartbeat for ", std::setprecision(2), silence,
            " s (heartbeat timeout ", seconds_between(Time{}, Time{settings_.heartbeat_timeout}),
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

bool Membership::was_away(Time now) const {
  const auto timeout = settings_.heartbeat_timeout;
  return now - last_tick_ >= timeout / 2 || (away_at_ && now - *away_at_ <= timeout);
}

// `doubter` has lost this rank. Which of the two is it that was frozen or cut off?
void Membership::hear_doubt(Rank doubter, const std::string& text, Time now, Actions& actions) {
  if (!is_alive(doubter)) return;
  if (was_away(now)) {
    doubts_.try_emplace(doubter, text);
    if (is_coordinator()) step_down_if_doubted(actions);
  } else if (is_coordinator()) {
    const wire::Lost lost{
        doubter, false,
        str(describe_rank(doubter), " had lost ", describe_rank(settings_.rank),
            ", which others had not: it was frozen, or the network to it was down")};
    if (peer(doubter).is_connected) actions.send.emplace_back(doubter, lost);
    actions.disconnect.push_back(doubter);
    lose(lost, now, actions);
  }
}

// Those that have left this rank behind while it was away, and are there: all must follow them to
// the next coordinator, or there would be two.
void Membership::step_down_if_doubted(Actions& actions) {
  const auto doubt = std::find_if(doubts_.begin(), doubts_.end(),
                                  [&](const auto& each) { return is_alive(each.first); });
  if (doubt == doubts_.end() || stepped_down_) return;
  stepped_down_ = wire::Lost{settings_.rank, false, doubt->second};
  actions.gone.push_back(*stepped_down_);
  spread(*stepped_down_, -1, actions);
}

}  // namespace gradring::transport
