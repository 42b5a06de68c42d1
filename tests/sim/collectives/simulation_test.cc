// Whole jobs with faults, two hundred seeds of what gradring_soak plays by the thousand.
#include "sim/collectives/simulation.h"

#include <doctest/doctest.h>

#include <set>

namespace gradring::sim::simulation_test {
namespace {

constexpr std::uint64_t kSeeds = 200;

TEST_CASE("whatever breaks, every rank ends with right results or with an error that names why") {
  int succeeded = 0;
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Scenario scenario = scenario_of(seed);
    const Outcome outcome = simulate(scenario);
    CAPTURE(scenario.text());
    CHECK(outcome.complaint == "");
    succeeded += outcome.succeeded;
    failed += outcome.failed;
  }
  // Seeds that never broke anything, or never let anything work, would prove nothing.
  CHECK(succeeded > 20);
  CHECK(failed > 20);
}

TEST_CASE("a seed plays the same every time, and another seed plays otherwise") {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    const Outcome first = simulate(scenario_of(seed));
    const Outcome second = simulate(scenario_of(seed));
    CAPTURE(seed);
    CHECK(first.hash == second.hash);
    CHECK(first.complaint == second.complaint);
    hashes.insert(first.hash);
  }
  CHECK(hashes.size() == 10);
}

TEST_CASE("the simulation draws every kind of fault and of wrong call") {
  std::set<FaultKind> kinds;
  std::set<OpKind> wrong;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const Scenario scenario = scenario_of(seed);
    for (const Fault& fault : scenario.faults) kinds.insert(fault.kind);
    if (scenario.wrong_call) wrong.insert(scenario.wrong_call->called.op);
  }
  CHECK(kinds.size() == kFaultKinds);
  CHECK(wrong.size() == 9);
}

}  // namespace
}  // namespace gradring::sim::simulation_test
