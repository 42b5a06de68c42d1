// What a link costs, as the planner sees it (collectives/plan/choose.h). Measured by `gradring
// tune`, given to rank 0, told to the others when they join: all ranks must go by the same figures.
#pragma once

#include <cmath>
#include <optional>

namespace gradring {

struct LinkCosts {
  double latency_us = 0;      // One step: a small message sent, received and acted on.
  double bandwidth_gb_s = 0;  // What one rank sends while it receives as much, in a stream.
  double reduce_gb_s = 0;     // Result bytes of one addition of two operands.
  // What a further link in the same step costs, as a part of a step. Where every rank sends and
  // receives on all of them, the wake-ups and system calls add up to as much as a step of its own.
  double further_link = 0.95;
};

// By transport; nothing: the planner's defaults.
struct CostProfile {
  std::optional<LinkCosts> tcp;
  std::optional<LinkCosts> shared_memory;
};

// Whether a planner can compare by them: numbers, none of them absurd.
inline bool is_sound(const LinkCosts& costs) {
  constexpr double kMost = 1e9;
  const auto is_rate = [](double value) { return std::isfinite(value) && value > 0; };
  return is_rate(costs.latency_us) && is_rate(costs.bandwidth_gb_s) && is_rate(costs.reduce_gb_s) &&
         costs.latency_us <= kMost && costs.further_link >= 0 && costs.further_link <= kMost;
}

}  // namespace gradring
