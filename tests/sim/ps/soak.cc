// gradring_ps_soak: plays many seeds of the parameter server's simulation and prints each that
// breaks a promise. A seed that failed is played again, line by line, with --seed.
#include <iostream>

#include "sim/ps/simulation.h"
#include "sim/seed_options.h"

namespace {

using gradring::sim::parse_seeds;
using gradring::sim::PsOutcome;
using gradring::sim::PsScenario;
using gradring::sim::SeedOptions;

int play_one(std::uint64_t seed) {
  const PsScenario scenario = gradring::sim::ps_scenario_of(seed);
  std::cout << scenario.text() << '\n';
  const PsOutcome outcome = simulate(scenario, true);
  std::cout << outcome.calls << " calls, " << outcome.failed << " of them failed, " << outcome.cuts
            << " checkpoints; trace " << std::hex << outcome.hash << std::dec << '\n';
  if (outcome.complaint.empty()) return 0;
  std::cout << "BROKEN PROMISE: " << outcome.complaint << '\n';
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const SeedOptions options = parse_seeds("gradring_ps_soak", argc, argv);
  if (options.is_one) return play_one(options.first);
  std::uint64_t broken = 0;
  PsOutcome total;
  for (std::uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    const PsScenario scenario = gradring::sim::ps_scenario_of(seed);
    const PsOutcome outcome = simulate(scenario);
    total.calls += outcome.calls;
    total.failed += outcome.failed;
    total.cuts += outcome.cuts;
    total.rows_judged += outcome.rows_judged;
    total.dense_judged += outcome.dense_judged;
    total.reconnections += outcome.reconnections;
    if (outcome.complaint.empty()) continue;
    ++broken;
    std::cout << scenario.text() << "\n  " << outcome.complaint
              << "\n  again: gradring_ps_soak --seed " << seed << std::endl;
  }
  std::cout << options.seeds << " seeds: " << total.calls << " calls, " << total.failed
            << " of them with a right error, " << total.reconnections << " connections made again, "
            << total.cuts << " checkpoints, " << total.rows_judged << " rows and "
            << total.dense_judged << " dense tables judged, " << broken
            << " seeds broke a promise\n";
  return broken == 0 ? 0 : 1;
}
