#include "sim/collectives/blame.h"

#include <algorithm>

namespace gradring::sim {
namespace {

Micros unnoticed_most(const Scenario& scenario) {
  return Micros{scenario.heartbeat_timeout} * 4 / 10;
}

bool is_short(const Scenario& scenario, const Fault& fault) {
  return fault.duration && *fault.duration <= unnoticed_most(scenario);
}

}  // namespace

Blame::Blame(const Scenario& scenario)
    : scenario_(scenario),
      is_hit_(index(scenario.world_size)),
      is_gone_(is_hit_),
      has_left_(is_hit_),
      has_finished_(is_hit_),
      is_cut_(is_hit_),
      hit_at_(is_hit_.size()) {
  Micros total{0};
  for (const Fault& fault : scenario.faults)
    if (is_short(scenario, fault)) total += *fault.duration;
  short_faults_add_up_ = total > unnoticed_most(scenario);
}

bool Blame::is_unnoticed(const Fault& fault) const {
  return is_short(scenario_, fault) && !short_faults_add_up_;
}

void Blame::hit(Rank rank, Time now, bool is_for_good) {
  anything_happened_ = true;
  is_hit_[index(rank)] = true;
  if (is_for_good) is_gone_[index(rank)] = true;
  if (!hit_at_[index(rank)]) hit_at_[index(rank)] = now;
}

void Blame::leave(Rank rank, Time now) {
  anything_happened_ = true;
  has_left_[index(rank)] = true;
  is_gone_[index(rank)] = true;
  if (!hit_at_[index(rank)]) hit_at_[index(rank)] = now;
}

void Blame::cut(Rank a, Rank b) {
  anything_happened_ = true;
  is_cut_[index(a)] = true;
  is_cut_[index(b)] = true;
}

void Blame::part(Rank a, Rank b) {
  anything_happened_ = true;
  const auto& members = scenario_.members;
  const auto is_member = [&](Rank rank) {
    return std::find(members.begin(), members.end(), rank) != members.end();
  };
  are_members_parted_ |= is_member(a) && is_member(b);
  is_hit_[index(a)] = true;
  is_hit_[index(b)] = true;
}

bool Blame::may_be_split() const {
  return std::any_of(splits_.begin(), splits_.end(), [&](const auto& split) {
    return is_hit_[index(split.second)] || may_have_left(split.second);
  });
}

std::string Blame::objection(Rank rank, const Failure& failure) const {
  switch (failure.kind) {
    case ErrorKind::kMismatch:
      return scenario_.wrong_call ? "" : "a mismatch, though everybody made the same calls";
    case ErrorKind::kTimedOut: {
      const bool is_short_time = scenario_.operation_timeout < scenario_.heartbeat_timeout * 2;
      // A wrong call may leave ranks waiting in different operations, where nothing can be
      // compared.
      if (is_short_time || scenario_.wrong_call || is_impaired(rank) || are_members_parted_)
        return "";
      return "it timed out before the heartbeat spoke";
    }
    case ErrorKind::kPeerLost: {
      if (is_impaired(rank) || may_be_split()) return "";
      const std::size_t named = index(failure.rank);
      if (is_hit_[named] || has_left_[named] || is_cut_[named]) return "";
      // Who was done went home, and was missed by those who were held up.
      if (has_finished_[named] && (anything_happened_ || scenario_.wrong_call)) return "";
      return str("it names rank ", failure.rank, ", to which nothing has happened");
    }
    default: return "this kind of error has no cause here";
  }
}

Millis Blame::patience() const {
  const auto faults = static_cast<std::int64_t>(scenario_.faults.size());
  return scenario_.heartbeat_timeout * (faults + 2) + Millis{3000};
}

}  // namespace gradring::sim
