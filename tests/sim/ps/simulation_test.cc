// Whole parameter servers with faults: two hundred seeds, where gradring_ps_soak plays thousands.
#include "sim/ps/simulation.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

namespace gradring::sim::ps_simulation_test {
namespace {

TEST_CASE("whatever breaks, every push counts once, no read goes back and every call ends") {
  PsOutcome total;
  std::map<PsWork, std::uint64_t> calls;
  std::uint64_t cuts_by_pushers = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const PsScenario scenario = ps_scenario_of(seed);
    const PsOutcome outcome = simulate(scenario);
    CAPTURE(scenario.text());
    CHECK(outcome.complaint == "");
    calls[scenario.work] += outcome.calls;
    total.rows_judged += outcome.rows_judged;
    total.calls += outcome.calls;
    total.failed += outcome.failed;
    total.cuts += outcome.cuts;
    if (scenario.saver_pushes) cuts_by_pushers += outcome.cuts;
    total.reconnections += outcome.reconnections;
    total.dense_judged += outcome.dense_judged;
    total.dense_parts += outcome.dense_parts;
    total.rows_removed += outcome.rows_removed;
    total.replicas_compared += outcome.replicas_compared;
    total.claims_compared += outcome.claims_compared;
    total.rules_compared += outcome.rules_compared;
    total.rules_made_anew += outcome.rules_made_anew;
  }
  // Seeds that never broke anything, or never let anything work, would prove nothing.
  CHECK(total.calls > 5000);
  CHECK(total.failed > 20);
  CHECK(total.cuts > 100);
  CHECK(cuts_by_pushers > 30);
  CHECK(total.reconnections > 300);
  CHECK(total.rows_judged > 5000);
  CHECK(total.dense_judged > 100);
  CHECK(total.dense_parts > 1000);
  CHECK(total.rows_removed > 500);
  CHECK(total.replicas_compared > 5);
  CHECK(total.claims_compared > 5);
  CHECK(total.rules_compared > 100);
  CHECK(total.rules_made_anew > 20);
  CHECK(calls.size() == kPsWorkCount);
  for (const auto& [work, count] : calls) {
    CAPTURE(static_cast<int>(work));
    CHECK(count > 500);
  }
}

TEST_CASE("a seed of a parameter server plays the same every time, and another plays otherwise") {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 100; seed < 105; ++seed) {
    const PsOutcome first = simulate(ps_scenario_of(seed));
    const PsOutcome second = simulate(ps_scenario_of(seed));
    CAPTURE(seed);
    CHECK(first.hash == second.hash);
    hashes.insert(first.hash);
  }
  CHECK(hashes.size() == 5);
}

TEST_CASE("the simulation of a parameter server draws every kind of work and of fault") {
  std::set<PsWork> works;
  std::set<PsFaultKind> kinds;
  int reordered = 0;
  int narrow = 0;
  int pushing_savers = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const PsScenario scenario = ps_scenario_of(seed);
    works.insert(scenario.work);
    reordered += scenario.reorder_percent > 0 ? 1 : 0;
    narrow += scenario.flight_bytes < 1000 ? 1 : 0;
    pushing_savers += scenario.saver_pushes ? 1 : 0;
    for (const PsFault& fault : scenario.faults) kinds.insert(fault.kind);
  }
  CHECK(works.size() == kPsWorkCount);
  CHECK(kinds.size() == kPsFaultKindCount);
  CHECK(reordered > 30);
  CHECK(narrow > 10);
  CHECK(pushing_savers > 10);
}

}  // namespace
}  // namespace gradring::sim::ps_simulation_test
