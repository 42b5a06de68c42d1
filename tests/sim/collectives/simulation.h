// Simulation: a whole job in one thread, from one seed: every rank's monitor and worker take turns
// on a virtual clock while the scenario's faults happen, and every promise is checked as soon as it
// can be. Used by gradring_soak and by the tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/collectives/blame.h"
#include "sim/collectives/monitor.h"
#include "sim/collectives/network.h"
#include "sim/collectives/scenario.h"
#include "sim/collectives/worker.h"
#include "sim/quiet.h"
#include "sim/trace.h"

namespace gradring::sim {

struct Outcome {
  std::string complaint;  // The first broken promise, or nothing.
  std::uint64_t hash = 0;
  int succeeded = 0;  // Ranks that got all their results.
  int failed = 0;     // Ranks that got an error.
};

Outcome simulate(const Scenario& scenario, bool is_printed = false);

class Simulation {
 public:
  Simulation(const Scenario& scenario, bool is_printed);
  Outcome run();

 private:
  struct Host {
    std::unique_ptr<Monitor> monitor;
    std::unique_ptr<Worker> worker;  // None: only looks on.
    std::size_t gone_seen = 0;
    bool was_judged = false;
  };
  struct Planned {  // A fault and how far it is.
    Fault fault;
    enum class State : std::uint8_t { kArmed, kStarting, kOn, kOver } state = State::kArmed;
    Time at{};
  };

  Host& host(Rank rank) { return hosts_[static_cast<std::size_t>(rank)]; }
  void introduce();
  void round();
  bool turn(Rank rank);
  void pass_time();
  Time next_event() const;

  void strike();
  void start(Planned& planned);
  void stop(Planned& planned);
  void cut_off(const Fault& fault);
  void drop_control(Rank rank, Rank other);
  void start_storm();
  bool all_are_over() const;

  void check_gone(Rank rank);
  static bool has_heard_goodbye(const Host& each, Rank rank);
  void judge(Rank rank);
  void check_calls(Rank rank);
  void check_progress();
  void check_truth();
  void complain(Rank rank, const std::string& text);

  const Scenario& scenario_;
  Trace trace_;
  Dice dice_;
  Network network_;
  Blame blame_;
  std::vector<Exercise> exercises_;
  std::unique_ptr<Exercise> wrong_;
  std::vector<Host> hosts_;
  std::vector<Planned> faults_;
  Quiet quiet_;
  int storms_ = 0;
  Time last_progress_{};
  std::string complaint_;
};

}  // namespace gradring::sim
