// gradring_soak: plays many seeds of the simulation and prints each that breaks a promise. A seed
// that failed is played again, line by line, with --seed.
#include <iostream>

#include "sim/collectives/simulation.h"
#include "sim/seed_options.h"

namespace {

using gradring::sim::Outcome;
using gradring::sim::parse_seeds;
using gradring::sim::Scenario;
using gradring::sim::SeedOptions;

int play_one(std::uint64_t seed) {
  const Scenario scenario = gradring::sim::scenario_of(seed);
  std::cout << scenario.text() << '\n';
  const Outcome outcome = simulate(scenario, true);
  std::cout << outcome.succeeded << " ranks got all results, " << outcome.failed
            << " an error; trace " << std::hex << outcome.hash << std::dec << '\n';
  if (outcome.complaint.empty()) return 0;
  std::cout << "BROKEN PROMISE: " << outcome.complaint << '\n';
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const SeedOptions options = parse_seeds("gradring_soak", argc, argv);
  if (options.is_one) return play_one(options.first);
  std::uint64_t broken = 0;
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    const Outcome outcome = simulate(gradring::sim::scenario_of(seed));
    succeeded += static_cast<std::uint64_t>(outcome.succeeded);
    failed += static_cast<std::uint64_t>(outcome.failed);
    if (outcome.complaint.empty()) continue;
    ++broken;
    std::cout << "seed " << seed << ": " << outcome.complaint << "\n  again: gradring_soak --seed "
              << seed << '\n';
  }
  std::cout << options.seeds << " seeds: " << succeeded << " ranks got all their results, "
            << failed << " a right error, " << broken << " seeds broke a promise\n";
  return broken == 0 ? 0 : 1;
}
