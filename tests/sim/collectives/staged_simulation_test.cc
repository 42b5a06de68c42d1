// The staged pipeline in a few hundred worlds that chance makes: see staged_simulation.h.
#include "sim/collectives/staged_simulation.h"

#include <doctest/doctest.h>

namespace gradring::sim::staged_simulation_test {
namespace {

TEST_CASE("staged rounds keep their slots and their data apart, whatever fails") {
  std::uint32_t finished = 0;
  std::uint32_t stopped = 0;
  std::uint32_t overlapped = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const StagedScenario scenario = staged_scenario_of(seed);
    const StagedOutcome outcome = simulate_staged(scenario);
    CAPTURE(seed);
    CAPTURE(scenario.slots);
    CAPTURE(scenario.waits_on_memory);
    CHECK(outcome.complaint == "");
    finished += outcome.finished;
    stopped += outcome.stopped;
    overlapped += outcome.overlapped;
  }
  // Seeds in which nothing failed, or nothing worked, would prove nothing.
  CHECK(finished > 1000);
  CHECK(stopped > 1000);
  CHECK(overlapped > 1000);
}

}  // namespace
}  // namespace gradring::sim::staged_simulation_test
