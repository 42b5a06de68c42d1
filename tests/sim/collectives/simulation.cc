#include "sim/collectives/simulation.h"

#include <algorithm>
#include <numeric>

#include "base/config.h"
#include "base/error.h"

namespace gradring::sim {
namespace {

constexpr int kIdleTurns = 6;
constexpr Millis kNothingToCome{100};
constexpr Time kStart = Time{} + std::chrono::hours(1);

}  // namespace

Outcome simulate(const Scenario& scenario, bool is_printed) {
  return Simulation(scenario, is_printed).run();
}

Simulation::Simulation(const Scenario& scenario, bool is_printed)
    : scenario_(scenario),
      trace_(is_printed),
      dice_(scenario.seed + 77),
      network_(scenario.world_size, scenario.seed),
      blame_(scenario),
      hosts_(static_cast<std::size_t>(scenario.world_size)),
      quiet_(hosts_.size(), kIdleTurns) {
  network_.weather.now = last_progress_ = kStart;
  network_.weather.max_delay = scenario.max_delay;
  network_.weather.short_percent = scenario.short_percent;
  for (std::size_t i = 0; i < scenario.operations.size(); ++i)
    exercises_.emplace_back(scenario.operations[i], scenario.seed * 100 + i);
  if (scenario.wrong_call)
    wrong_ = std::make_unique<Exercise>(scenario.wrong_call->called, scenario.seed * 100 + 99);
  for (const Fault& fault : scenario.faults) faults_.push_back({fault});
  introduce();
}

void Simulation::introduce() {
  for (Rank rank = 0; rank < scenario_.world_size; ++rank)
    host(rank).monitor = std::make_unique<Monitor>(rank, scenario_.world_size,
                                                   scenario_.heartbeat_timeout, network_, trace_);
  for (Rank rank = 1; rank < scenario_.world_size; ++rank) {
    auto [mine, theirs] =
        network_.join(0, rank, kControl, {.capacity_bytes = limits::kControlFrameBytes});
    host(0).monitor->adopt(rank, std::move(mine));
    host(rank).monitor->adopt(0, std::move(theirs));
  }
  for (std::size_t i = 0; i < scenario_.members.size(); ++i) {
    const Rank rank = scenario_.members[i];
    const bool is_wrong =
        scenario_.wrong_call && scenario_.wrong_call->rank == static_cast<Rank>(i);
    host(rank).worker =
        std::make_unique<Worker>(rank, scenario_, exercises_, is_wrong ? wrong_.get() : nullptr,
                                 network_, *host(rank).monitor, trace_);
  }
}

Outcome Simulation::run() {
  while (complaint_.empty() && !all_are_over()) round();
  // Everybody has an end; now the survivors get the time to agree on who they are.
  const Time settled = network_.now() + blame_.patience();
  while (complaint_.empty() && network_.now() < settled) round();
  if (complaint_.empty()) check_truth();
  Outcome outcome;
  outcome.complaint = complaint_;
  outcome.hash = trace_.hash();
  for (const Host& each : hosts_) {
    if (!each.worker) continue;
    if (each.worker->state() == Worker::State::kDone) ++outcome.succeeded;
    if (each.worker->state() == Worker::State::kFailed) ++outcome.failed;
  }
  return outcome;
}

bool Simulation::all_are_over() const {
  for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
    const Host& each = hosts_[static_cast<std::size_t>(rank)];
    if (each.worker && !each.worker->is_over() && !blame_.is_gone_for_good(rank)) return false;
  }
  return true;
}

void Simulation::round() {
  strike();
  std::vector<Rank> order(hosts_.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[dice_.below(left)]);
  for (const Rank rank : order) {
    if (!network_.process(rank).runs()) continue;
    if (dice_.percent(10)) continue;  // The scheduler had something better to do.
    quiet_.note_turn(static_cast<std::size_t>(rank), turn(rank));
    if (!complaint_.empty()) break;
  }
  check_progress();
  pass_time();
}

bool Simulation::turn(Rank rank) {
  Host& each = host(rank);
  bool moved = false;
  const bool is_worker_first = dice_.percent(50);
  if (each.worker && is_worker_first) moved |= each.worker->step();
  moved |= each.monitor->step();
  if (each.worker && !is_worker_first) moved |= each.worker->step();
  check_gone(rank);
  if (each.worker) {
    if (!each.worker->complaint().empty()) complain(rank, each.worker->complaint());
    if (each.worker->is_over() && !each.was_judged) judge(rank);
  }
  if (each.monitor->has_left()) {
    network_.end(rank, false);
    trace_.note(network_.now(), rank, "has ended");
  }
  return moved;
}

void Simulation::pass_time() {
  Time& now = network_.weather.now;
  now += Micros{1 + static_cast<std::int64_t>(dice_.below(20))};
  const auto runs = [this](std::size_t rank) {
    return network_.process(static_cast<Rank>(rank)).runs();
  };
  if (!quiet_.is_complete(runs)) return;
  quiet_.break_off();
  const Time next = next_event();
  // Where nothing will come of itself: whoever should have ended by then hangs, or all have ended.
  now = next == Time::max() ? now + kNothingToCome : std::max(now, next);
}

Time Simulation::next_event() const {
  Time next = network_.next_event();
  const auto consider = [&](Time time) {
    if (time > network_.now()) next = std::min(next, time);
  };
  for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
    const Host& each = hosts_[static_cast<std::size_t>(rank)];
    if (!const_cast<Network&>(network_).process(rank).runs()) continue;
    consider(each.monitor->next_event());
    if (each.worker) consider(each.worker->next_event());
  }
  for (const Planned& planned : faults_)
    if (planned.state == Planned::State::kStarting || planned.state == Planned::State::kOn)
      consider(planned.at);
  return next;
}

}  // namespace gradring::sim
