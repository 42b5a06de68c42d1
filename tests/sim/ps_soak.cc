// gradring_ps_soak: plays many seeds of the parameter server's simulation and prints each that
// breaks a promise. A seed that failed is played again, line by line, with --seed.
#include <cstdlib>
#include <iostream>
#include <string>

#include "sim/ps_simulation.h"

namespace {

using gradring::sim::PsOutcome;
using gradring::sim::PsScenario;

struct Wishes {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1000;
  bool is_one = false;
};

[[noreturn]] void explain() {
  std::cerr << "usage: gradring_ps_soak [--seeds N] [--first S] | --seed S\n";
  std::exit(2);
}

Wishes parse(int argc, char** argv) {
  Wishes wishes;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) explain();
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(argv[i + 1], &end, 10);
    if (*end != '\0') explain();
    if (name == "--seeds") {
      wishes.seeds = value;
    } else if (name == "--first") {
      wishes.first = value;
    } else if (name == "--seed") {
      wishes.first = value;
      wishes.is_one = true;
    } else {
      explain();
    }
  }
  return wishes;
}

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
  const Wishes wishes = parse(argc, argv);
  if (wishes.is_one) return play_one(wishes.first);
  std::uint64_t broken = 0;
  PsOutcome total;
  for (std::uint64_t seed = wishes.first; seed < wishes.first + wishes.seeds; ++seed) {
    const PsScenario scenario = gradring::sim::ps_scenario_of(seed);
    const PsOutcome outcome = simulate(scenario);
    total.calls += outcome.calls;
    total.failed += outcome.failed;
    total.cuts += outcome.cuts;
    total.rows_judged += outcome.rows_judged;
    total.reconnections += outcome.reconnections;
    if (outcome.complaint.empty()) continue;
    ++broken;
    std::cout << scenario.text() << "\n  " << outcome.complaint
              << "\n  again: gradring_ps_soak --seed " << seed << std::endl;
  }
  std::cout << wishes.seeds << " seeds: " << total.calls << " calls, " << total.failed
            << " of them with a right error, " << total.reconnections << " connections made again, "
            << total.cuts << " checkpoints, " << total.rows_judged << " rows judged, " << broken
            << " seeds broke a promise\n";
  return broken == 0 ? 0 : 1;
}
