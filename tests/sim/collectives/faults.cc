// The half of Simulation that breaks things, as the scenario says.
#include <algorithm>

#include "sim/collectives/simulation.h"

namespace gradring::sim {

using State = Worker::State;

void Simulation::strike() {
  for (Planned& planned : faults_) {
    const Fault& fault = planned.fault;
    if (planned.state == Planned::State::kArmed) {
      if (fault.kind == FaultKind::kDropData) {
        if (!network_.is_broken(fault.rank, fault.other, kFirstGroup)) continue;
        blame_.cut(fault.rank, fault.other);
        planned.state = Planned::State::kOver;
        continue;
      }
      // Onlookers call nothing: their faults follow the communicator's first rank.
      const Rank clock = host(fault.rank).worker ? fault.rank : scenario_.members.front();
      const Worker& worker = *host(clock).worker;
      if (worker.operation() < fault.operation && !worker.is_over()) continue;
      planned.state = Planned::State::kStarting;
      planned.at = network_.now() + fault.after;
    }
    if (network_.now() < planned.at || planned.state == Planned::State::kOver) continue;
    quiet_.break_off();
    if (planned.state == Planned::State::kStarting)
      start(planned);
    else if (planned.state == Planned::State::kOn)
      stop(planned);
  }
}

void Simulation::start(Planned& planned) {
  const Fault& fault = planned.fault;
  planned.state = Planned::State::kOver;
  Process& process = network_.process(fault.rank);
  if (process.has_ended && fault.kind != FaultKind::kStorm) return;
  trace_.note(network_.now(), fault.rank, str("FAULT: ", name(fault.kind)));
  const bool is_lasting = fault.kind == FaultKind::kFreeze || fault.kind == FaultKind::kCutOff;
  if (is_lasting && !blame_.is_unnoticed(fault))
    blame_.hit(fault.rank, network_.now(), !fault.duration);
  if (fault.duration &&
      (is_lasting || fault.kind == FaultKind::kStorm || fault.kind == FaultKind::kCutPair)) {
    planned.state = Planned::State::kOn;
    planned.at = network_.now() + *fault.duration;
  }
  switch (fault.kind) {
    case FaultKind::kKill:
      blame_.hit(fault.rank, network_.now(), true);
      network_.end(fault.rank, true);
      break;
    case FaultKind::kFreeze: ++process.freezes; break;
    case FaultKind::kCutOff: cut_off(fault); break;
    case FaultKind::kLeave:
      blame_.leave(fault.rank, network_.now());
      if (host(fault.rank).worker) host(fault.rank).worker->leave();
      host(fault.rank).monitor->leave();
      break;
    case FaultKind::kDropControl: drop_control(fault.rank, fault.other); break;
    case FaultKind::kStorm: start_storm(); break;
    case FaultKind::kCutPair:
      blame_.part(fault.rank, fault.other);
      network_.cut_pair(fault.rank, fault.other, 1);
      break;
    case FaultKind::kDropData: break;
  }
}

void Simulation::stop(Planned& planned) {
  planned.state = Planned::State::kOver;
  const Fault& fault = planned.fault;
  trace_.note(network_.now(), fault.rank, str("the end of: ", name(fault.kind)));
  if (fault.kind == FaultKind::kFreeze) --network_.process(fault.rank).freezes;
  if (fault.kind == FaultKind::kCutOff) network_.cut_off(fault.rank, -1);
  if (fault.kind == FaultKind::kCutPair) network_.cut_pair(fault.rank, fault.other, -1);
  if (fault.kind == FaultKind::kStorm && --storms_ == 0)
    network_.weather.max_delay = scenario_.max_delay;
}

// Of two that are left neither can tell which of them was.
void Simulation::cut_off(const Fault& fault) {
  network_.cut_off(fault.rank, 1);
  std::vector<Rank> others;
  for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
    const Process& process = network_.process(rank);
    if (rank != fault.rank && process.runs() && process.cuts == 0) others.push_back(rank);
  }
  if (others.size() == 1 && !blame_.is_unnoticed(fault))
    blame_.hit(others.front(), network_.now(), false);
}

// Between `rank` and its coordinator; if it is that itself, between it and `other`.
void Simulation::drop_control(Rank rank, Rank other) {
  const Rank leader = host(rank).monitor->membership().coordinator();
  const Rank follower = rank == leader ? other : rank;
  if (follower == leader || !host(leader).monitor->is_connected(follower)) return;
  blame_.hit(follower, network_.now(), false);
  blame_.split(follower, leader);
  network_.reset(leader, follower, kControl);
}

void Simulation::start_storm() {
  ++storms_;
  const Micros most = Micros{scenario_.heartbeat_timeout} / 4;
  network_.weather.max_delay =
      std::max(network_.weather.max_delay,
               dice_.between(scenario_.max_delay, std::max(most, scenario_.max_delay)));
}

}  // namespace gradring::sim
