#include "sim/ps/simulation.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace gradring::sim {
namespace {

constexpr int kIdleTurns = 4;
constexpr Time kBeginning = Time{} + std::chrono::hours(1);
// By then every call has long had its deadline, whatever happened.
constexpr Millis kLongest{600'000};
constexpr Millis kSettling{8'000};

}  // namespace

PsOutcome simulate(const PsScenario& scenario, bool is_printed) {
  return PsSimulation(scenario, is_printed).run();
}

PsSimulation::PsSimulation(const PsScenario& scenario, bool is_printed)
    : scenario_(scenario),
      trace_(is_printed),
      network_(scenario),
      world_(scenario, trace_),
      dice_(scenario.seed + 177),
      places_(scenario.clients + (scenario.has_saver && !scenario.saver_pushes ? 1 : 0)),
      quiet_(scenario.servers + places_.size(), kIdleTurns) {
  network_.weather.now = kBeginning;
  network_.weather.max_delay = scenario.max_delay;
  network_.weather.short_percent = scenario.short_percent;
  world_.was_given_up = [this](std::uint32_t client) {
    return std::any_of(servers_.begin(), servers_.end(),
                       [&](const auto& server) { return server->has_given_up(client); });
  };
  world_.check_cut = [this](std::uint64_t cut, const auto& done) { check_cut(cut, done); };
  for (const PsFault& fault : scenario.faults) faults_.push_back({fault});
  for (std::uint32_t server = 0; server < scenario.servers; ++server) {
    servers_.push_back(std::make_unique<PsServer>(scenario, server));
    servers_.back()->start();
  }
  for (std::uint32_t place = 0; place < places_.size(); ++place) start_client(place);
}

std::uint32_t PsSimulation::number_of(std::uint32_t place) const {
  return place < scenario_.clients ? place : kSaverNumber;
}

void PsSimulation::start_client(std::uint32_t at) {
  Place& place = places_[at];
  place.comes_back = false;
  place.client =
      std::make_unique<PsClient>(scenario_, number_of(at), ++last_process_, network_, trace_);
  place.client->dial = [this](PsClient& client, std::uint32_t shard) {
    return dial(client, shard);
  };
  if (at == scenario_.clients) {
    place.program = make_saver(*place.client, world_);
    return;
  }
  world_.still_going.insert(at);
  switch (scenario_.work) {
    case PsWork::kCounting:
      place.program = at == 0 && scenario_.saver_pushes ? make_counting_saver(*place.client, world_)
                                                        : make_counting(*place.client, world_);
      return;
    case PsWork::kBounded: place.program = make_bounded(*place.client, world_); return;
    case PsWork::kRounds: place.program = make_rounds(*place.client, world_); return;
    case PsWork::kGeo: place.program = make_geo(*place.client, world_); return;
    case PsWork::kClaiming: place.program = make_claiming(*place.client, world_); return;
  }
}

std::unique_ptr<transport::MemoryLink> PsSimulation::dial(PsClient& client, std::uint32_t shard) {
  const std::uint32_t index = shard / scenario_.threads;
  PsServer& server = *servers_[index];
  if (!server.is_up() || network_.is_apart(client.number(), index)) return nullptr;
  auto ends = network_.join(client.number(), index);
  server.accept(shard, std::move(ends.server), network_.now());
  return std::move(ends.client);
}

PsOutcome PsSimulation::run() {
  while (world_.complaint.empty() && !all_are_over()) {
    round();
    if (network_.now() < kBeginning + kLongest) continue;
    world_.complain("a call has not ended long after its deadline");
  }
  // What is under way may still arrive.
  calm_down();
  const Time settled = network_.now() + kSettling;
  while (world_.complaint.empty() && network_.now() < settled) round();
  if (world_.complaint.empty()) check_end();
  return {.complaint = world_.complaint,
          .hash = trace_.hash(),
          .calls = world_.calls_ended,
          .failed = world_.calls_failed,
          .cuts = world_.cuts_taken,
          .reconnections = network_.reconnections(),
          .rows_judged = world_.rows_judged,
          .dense_judged = world_.dense_judged,
          .dense_parts = world_.ledger.dense_parts(),
          .rows_removed = world_.rows_removed,
          .replicas_compared = world_.replicas_compared,
          .claims_compared = world_.claims_compared,
          .rules_compared = world_.rules_compared,
          .rules_made_anew = world_.rules_made_anew};
}

bool PsSimulation::all_are_over() const {
  return std::all_of(places_.begin(), places_.end(), [](const Place& place) {
    return place.client ? place.program->is_over() : !place.comes_back;
  });
}

void PsSimulation::round() {
  strike();
  std::vector<std::size_t> order(servers_.size() + places_.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[dice_.below(left)]);
  for (const std::size_t each : order) {
    if (!runs(each)) continue;
    if (dice_.percent(5)) continue;  // The scheduler had something better to do.
    quiet_.note_turn(each, turn(each));
  }
  pass_time();
}

bool PsSimulation::runs(std::size_t member) const {
  if (member < servers_.size()) return servers_[member]->runs();
  const Place& place = places_[member - servers_.size()];
  return place.client && !place.client->is_frozen;
}

bool PsSimulation::turn(std::size_t member) {
  if (member < servers_.size()) return servers_[member]->step(network_.now());
  Place& place = places_[member - servers_.size()];
  const bool has_moved = place.client->step();
  if (place.program->is_over()) return has_moved;
  const std::uint64_t ended = world_.calls_ended;
  place.program->step();
  if (place.program->is_over()) world_.still_going.erase(place.client->number());
  return has_moved || world_.calls_ended != ended;
}

void PsSimulation::pass_time() {
  Time& now = network_.weather.now;
  now += Micros{1 + static_cast<std::int64_t>(dice_.below(20))};
  if (!quiet_.is_complete([this](std::size_t member) { return runs(member); })) return;
  quiet_.break_off();
  // At most a little at a time: some things wait for nobody in particular.
  now = std::max(now, std::min(next_event(), now + Millis{20}));
}

Time PsSimulation::next_event() const {
  Time next = network_.next_event();
  const auto consider = [&](Time time) {
    if (time > network_.now()) next = std::min(next, time);
  };
  for (const auto& server : servers_)
    if (server->runs()) consider(server->next_event());
  for (const Place& place : places_)
    if (place.client && !place.client->is_frozen) consider(place.client->next_event());
  for (const Planned& planned : faults_)
    if (planned.state == Planned::State::kOn) consider(planned.ends);
  return next;
}

void PsSimulation::strike() {
  for (Planned& planned : faults_) {
    if (planned.state == Planned::State::kArmed && world_.calls_ended >= planned.fault.after_calls)
      start(planned);
    if (planned.state == Planned::State::kOn && network_.now() >= planned.ends) {
      planned.state = Planned::State::kOver;
      stop(planned.fault);
    }
  }
}

void PsSimulation::start(Planned& planned) {
  const PsFault& fault = planned.fault;
  quiet_.break_off();
  planned.state = Planned::State::kOn;
  planned.ends = network_.now() + fault.lasts;
  trace_.note(network_.now(), -1, str("fault ", static_cast<int>(fault.kind), " begins"));
  Place& place = places_[fault.client];
  PsServer& server = *servers_[fault.server];
  const bool hits_client =
      fault.kind != PsFaultKind::kFreezeServer && fault.kind != PsFaultKind::kKillServer;
  if (hits_client) world_.troubled.insert(fault.client);
  // Without its server nobody has a connection.
  else
    for (std::uint32_t client = 0; client < scenario_.clients; ++client)
      world_.troubled.insert(client);
  switch (fault.kind) {
    case PsFaultKind::kReset: network_.reset(fault.client, fault.server); return;
    case PsFaultKind::kPartition: network_.set_apart(fault.client, fault.server, true); return;
    case PsFaultKind::kFreezeClient:
      if (place.client) place.client->is_frozen = true;
      return;
    case PsFaultKind::kFreezeServer: server.set_frozen(true); return;
    case PsFaultKind::kKillServer:
      if (server.runs())
        server.doom();
      else if (server.is_up())
        server.kill();
      network_.reset_server(fault.server);
      return;
    case PsFaultKind::kCrashClient:
      if (!place.client || place.program->is_over()) return;
      world_.ledger.note_process_ended(place.client->process());
      // Of who has done its steps, and waits, nobody is waited for: it would push what is too late.
      place.comes_back =
          scenario_.work != PsWork::kRounds && world_.still_going.contains(fault.client);
      if (!place.comes_back) world_.still_going.erase(fault.client);
      place.program.reset();
      place.client.reset();
  }
}

void PsSimulation::stop(const PsFault& fault) {
  quiet_.break_off();
  trace_.note(network_.now(), -1, str("fault ", static_cast<int>(fault.kind), " is over"));
  Place& place = places_[fault.client];
  PsServer& server = *servers_[fault.server];
  switch (fault.kind) {
    case PsFaultKind::kReset: return;
    case PsFaultKind::kPartition: network_.set_apart(fault.client, fault.server, false); return;
    case PsFaultKind::kFreezeClient:
      if (place.client) place.client->is_frozen = false;
      return;
    case PsFaultKind::kFreezeServer: server.set_frozen(false); return;
    case PsFaultKind::kKillServer:
      if (server.is_up()) server.kill();  // It was frozen before its doom came.
      server.start();
      return;
    case PsFaultKind::kCrashClient:
      if (place.comes_back) start_client(fault.client);
  }
}

void PsSimulation::calm_down() {
  network_.calm_down();
  for (Planned& planned : faults_) {
    if (planned.state == Planned::State::kOn) stop(planned.fault);
    planned.state = Planned::State::kOver;
  }
}

}  // namespace gradring::sim
