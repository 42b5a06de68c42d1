// The staged pipeline of one rank, played from a seed: streams that run when chance lets them, a
// network that takes its time and may fail at any point, users' threads that are in the middle of
// putting steps into streams. What collectives/device/staged_flow.h promises is checked at every
// step. One thread, no clock.
#pragma once

#include <cstdint>
#include <string>

namespace gradring::sim {

struct StagedScenario {
  std::uint64_t seed = 0;
  std::uint32_t slots = 1;
  bool waits_on_memory = true;
  std::uint32_t works = 1;
  std::uint32_t most_rounds = 1;
  bool breaks = false;               // The network, in the middle of some round.
  std::uint32_t cancel_percent = 0;  // Works that are given up alone, before their turn.
};
StagedScenario staged_scenario_of(std::uint64_t seed);

struct StagedOutcome {
  std::string complaint;  // The first broken promise, or nothing.
  std::uint32_t finished = 0;
  std::uint32_t stopped = 0;
  std::uint32_t overlapped = 0;  // Turns with both streams and the network at work.
};
StagedOutcome simulate_staged(const StagedScenario& scenario);

}  // namespace gradring::sim
