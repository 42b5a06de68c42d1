// Blame: who may rightly be named in an error, from what really happened to whom.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "sim/collectives/scenario.h"

namespace gradring::sim {

class Blame {
 public:
  explicit Blame(const Scenario& scenario);

  // Its process ended, it froze, the network or its coordinator lost it. `is_for_good`: it must be
  // found out. Short faults, which nobody should notice, are not told.
  void hit(Rank rank, Time now, bool is_for_good);
  void leave(Rank rank, Time now);  // In good order, though others may still need it.
  void cut(Rank a, Rank b);         // A data connection between them broke.
  // The network between these two is down, and for nobody else: where they wait for each other's
  // data no heartbeat is missing.
  void part(Rank a, Rank b);
  // `follower` alone lost its coordinator. If that goes too before everybody has heard which of the
  // two to believe, there may be two halves, each sure of itself; only a majority could tell, and
  // there is none in a world of two.
  void split(Rank follower, Rank leader) { splits_.emplace_back(follower, leader); }
  bool may_be_split() const;
  void end_in_good_order(Rank rank) { has_finished_[index(rank)] = true; }

  // A fault this short is to go unnoticed, all such faults taken together.
  bool is_unnoticed(const Fault& fault) const;

  // Its own view of the others is worth nothing.
  bool is_impaired(Rank rank) const { return is_hit_[index(rank)]; }
  bool is_gone_for_good(Rank rank) const { return is_gone_[index(rank)]; }
  bool may_be_given_up(Rank rank) const { return is_hit_[index(rank)] || may_have_left(rank); }
  bool may_have_left(Rank rank) const {
    return has_left_[index(rank)] || has_finished_[index(rank)];
  }

  // What is wrong with this as the end of `rank`, or nothing.
  std::string objection(Rank rank, const Failure& failure) const;
  // How long after the first thing that went wrong everybody must know.
  Millis patience() const;
  std::optional<Time> first_hit(Rank rank) const { return hit_at_[index(rank)]; }

 private:
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  const Scenario& scenario_;
  bool short_faults_add_up_ = false;
  bool anything_happened_ = false;
  bool are_members_parted_ = false;
  std::vector<bool> is_hit_;
  std::vector<bool> is_gone_;
  std::vector<bool> has_left_;
  std::vector<bool> has_finished_;
  std::vector<bool> is_cut_;
  std::vector<std::optional<Time>> hit_at_;
  std::vector<std::pair<Rank, Rank>> splits_;
};

}  // namespace gradring::sim
