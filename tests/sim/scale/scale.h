// Scale: one collective in a world of 64 to 4,096 ranks: every rank's real plan, walked by the real
// PlanRun over a TimedNetwork, with what it costs a rank and what no algorithm can beat. For
// scale_report.cc (docs/scale.md has its results) and the tests. Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectives/plan/choose.h"
#include "sim/scale/timed_network.h"

namespace gradring::sim {

struct ScaleCase {
  OpKind op = OpKind::kAllReduce;
  Rank ranks = 64;
  std::uint64_t bytes =
      4;  // Of the whole vector; gather, scatter, all_to_all: all parts of one rank.
  collectives::Algorithm algorithm = collectives::Algorithm::kRing;
  std::optional<collectives::Order> order;  // Unless it is what order_for says.
};

collectives::Request request_of(const ScaleCase& c, Rank rank);

// What one rank's plans make it do and keep; of several ranks, the most.
struct RankLoad {
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_messages = 0;  // Sends in the plan; a header for each peer comes on top.
  std::uint64_t peers = 0;          // Connections.
  std::uint64_t plan_bytes = 0;     // The plans themselves.
  std::uint64_t scratch_bytes = 0;
  std::uint64_t actions = 0;
};

// The plans that the engine runs for this call, one after the other.
std::vector<collectives::Plan> plans_of(const ScaleCase& c, Rank rank);
RankLoad load_of(const std::vector<collectives::Plan>& plans);
// The most of some ranks of every kind: first, last, at either side of a power of two.
RankLoad sampled_load(const ScaleCase& c);

// What no algorithm can beat, each taken alone.
struct Bound {
  std::uint64_t hops = 0;        // A rank hears of all others, or all of one: ceil(log2 n).
  std::uint64_t sent_bytes = 0;  // By the busiest rank.
  double us = 0;                 // The larger of the two as time on this network.
};
Bound bound_of(const ScaleCase& c, const NetworkModel& model);

// What a plan makes its rank compute: at once, and as it hears from each peer.
struct Labour {
  using Chore = TimedNetwork::Chore;
  Chore at_once;
  std::map<Rank, std::vector<Chore>> by_peer;
};
Labour labour_of(const collectives::Plan& plan);

// All ranks' plans, ready to be played.
class ScaleWorld {
 public:
  // Throws what make_plan throws.
  explicit ScaleWorld(const ScaleCase& c);

  RankLoad most() const { return most_; }
  double mean_sent_bytes() const { return mean_sent_bytes_; }
  // Plays the collective once. Local actions take time but touch no memory.
  double play_us(const NetworkModel& model) const;
  std::uint64_t hops() const;  // On the longest path of messages that wait for each other.

 private:
  ScaleCase case_;
  std::vector<std::vector<collectives::Plan>> plans_;  // By rank; local actions without effect.
  std::vector<std::vector<Labour>> labour_;            // Theirs, in the same places.
  RankLoad most_;
  double mean_sent_bytes_ = 0;
};

// Plays it with real memory and data; what went wrong, or nothing. For small vectors of float32
// whose sums are exact. `us`, if not null: the time it took.
std::string wrong_result(const ScaleCase& c, const NetworkModel& model, double* us = nullptr);

// As the planner's costs, what a network profile of this model would say.
LinkCosts costs_of(const NetworkModel& model);

}  // namespace gradring::sim
