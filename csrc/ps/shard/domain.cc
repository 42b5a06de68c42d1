#include "ps/shard/domain.h"

#include <algorithm>
#include <bit>

#include "base/config.h"

namespace gradring::ps {
namespace {

// A worker that is so far ahead of the others has lost its way: its contributions would pile up.
constexpr std::uint64_t kRoundsAhead = 64;
// All workers' weights added up are a float32.
constexpr double kMostWeight = 1e30;

std::string names(const std::vector<std::uint32_t>& workers) {
  std::string text;
  for (const std::uint32_t worker : workers) text += str(text.empty() ? "" : ", ", worker);
  return str(workers.size() == 1 ? "worker " : "workers ", text);
}

}  // namespace

void Domain::set_clock(std::uint32_t client, std::uint64_t clock, const ClockPayload& payload) {
  if (!workers_.empty() && payload.is_round != is_round_)
    throw InvalidArgument(
        str("clock: worker ", client, " uses ", payload.is_round ? "rounds" : "bounded staleness",
            " where the others use ", is_round_ ? "rounds" : "bounded staleness"));
  if (!workers_.empty() && payload.workers != expected_)
    throw InvalidArgument(str("clock: worker ", client, " counts ", payload.workers,
                              " workers, the others ", expected_));
  if (payload.is_round && client >= payload.workers)
    throw InvalidArgument(
        str("clock: rounds of ", payload.workers, " workers have no worker ", client));
  if (payload.is_round && !(payload.weight >= 0 && payload.weight <= kMostWeight))
    throw InvalidArgument(str("clock: a weight of ", payload.weight, " is no number of examples"));
  if (payload.is_round && clock > applied_ + kRoundsAhead)
    throw InvalidArgument(str("clock: worker ", client, " is at step ", clock, ", but only ",
                              applied_, " rounds are applied; pull before you go on"));
  is_round_ = payload.is_round;
  expected_ = payload.workers;
  Worker& worker = workers_[client];
  worker.presence = Presence::kHere;
  if (is_round_ && clock > worker.clock) worker.weights[clock - 1] = payload.weight;
  worker.clock = std::max(worker.clock, clock);
}

void Domain::leave(std::uint32_t client) {
  const auto found = workers_.find(client);
  if (found != workers_.end()) found->second.presence = Presence::kLeft;
}

void Domain::lose(std::uint32_t client) {
  const auto found = workers_.find(client);
  if (found != workers_.end() && found->second.presence == Presence::kHere)
    found->second.presence = Presence::kLost;
}

bool Domain::is_over() const {
  return living() == 0;
}

std::uint64_t Domain::living() const {
  return static_cast<std::uint64_t>(
      std::count_if(workers_.begin(), workers_.end(),
                    [](const auto& entry) { return entry.second.presence == Presence::kHere; }));
}

std::vector<std::uint32_t> Domain::here() const {
  std::vector<std::uint32_t> found;
  for (const auto& [client, worker] : workers_)
    if (worker.presence == Presence::kHere) found.push_back(client);
  return found;
}

std::vector<std::uint32_t> Domain::behind(std::uint64_t clock) const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t client = 0; client < expected_ && clock > 0; ++client)
    if (!workers_.contains(client)) found.push_back(client);
  for (const auto& [client, worker] : workers_) {
    // A round needs everybody; a bound only those that live.
    const bool counts = is_round_ || worker.presence == Presence::kHere;
    if (counts && worker.clock < clock) found.push_back(client);
  }
  std::sort(found.begin(), found.end());
  return found;
}

bool Domain::is_open(const wire::Gate& gate) const {
  return gate.is_round ? applied_ >= gate.clock : behind(gate.clock).empty();
}

bool Domain::is_hopeless(const wire::Gate& gate) const {
  if (!gate.is_round || is_open(gate)) return false;
  const auto missing = behind(gate.clock);
  return std::any_of(missing.begin(), missing.end(), [this](std::uint32_t client) {
    const auto found = workers_.find(client);
    return found != workers_.end() && found->second.presence != Presence::kHere;
  });
}

Failure Domain::why_closed(const wire::Gate& gate) const {
  const auto missing = behind(gate.clock);
  for (const std::uint32_t client : missing) {
    const auto found = workers_.find(client);
    if (found == workers_.end() || found->second.presence == Presence::kHere) continue;
    const bool is_lost = found->second.presence == Presence::kLost;
    return {ErrorKind::kPeerLost, static_cast<Rank>(client),
            str("worker ", client, is_lost ? " was lost" : " left", " after ", found->second.clock,
                " steps; ", gate.is_round ? "round " : "step ", gate.clock, " waits for it")};
  }
  return {ErrorKind::kTimedOut, -1,
          str(gate.is_round ? "round " : "the bound at step ", gate.clock, " still waits for ",
              missing.empty() ? std::string("nobody") : names(missing), " after ", gate.wait_ms,
              " ms")};
}

void Domain::require_worker(std::uint32_t client) const {
  if (!workers_.contains(client))
    throw InvalidArgument(str("worker ", client, " has not said its clock in this domain"));
}

Contribution& Domain::contribution(std::uint32_t client, std::uint64_t clock, std::uint64_t table) {
  require_worker(client);
  if (!is_round_) throw InvalidArgument("a contribution to a domain without rounds");
  if (clock < applied_ || clock < workers_[client].clock)
    throw InvalidArgument(str("worker ", client, " contributes to round ", clock,
                              ", which it has ended; the rounds before ", applied_,
                              " are applied"));
  if (clock > applied_ + kRoundsAhead)
    throw InvalidArgument(str("worker ", client, " contributes to round ", clock, ", but only the ",
                              applied_, " rounds before are applied; pull before you go on"));
  return rounds_[clock][table][client];
}

void Domain::drop_unfinished(std::uint32_t client) {
  const auto worker = workers_.find(client);
  if (worker == workers_.end()) return;
  for (auto round = rounds_.lower_bound(worker->second.clock); round != rounds_.end(); ++round) {
    for (auto& [table, by_worker] : round->second) by_worker.erase(client);
    std::erase_if(round->second, [](const auto& entry) { return entry.second.empty(); });
  }
}

bool Domain::has_ready_round() const {
  if (!is_round_ || expected_ == 0 || !behind(applied_ + 1).empty()) return false;
  return workers_.size() >= expected_;
}

ReadyRound Domain::take_ready_round() {
  ReadyRound round;
  round.clock = applied_;
  const auto found = rounds_.find(applied_);
  if (found != rounds_.end()) {
    round.tables = std::move(found->second);
    rounds_.erase(found);
  }
  for (auto& [client, worker] : workers_) {
    const auto weight = worker.weights.find(applied_);
    round.weights[client] = weight == worker.weights.end() ? 0 : weight->second;
    worker.weights.erase(applied_);
  }
  ++applied_;
  return round;
}

void Domain::save(Bytes& out) const {
  wire::Writer writer;
  writer.put(static_cast<std::uint8_t>(is_round_));
  writer.put(expected_);
  writer.put(applied_);
  writer.put(static_cast<std::uint32_t>(workers_.size()));
  for (const auto& [client, worker] : workers_) {
    writer.put(client);
    writer.put(worker.presence);
    writer.put(worker.clock);
    writer.put(static_cast<std::uint32_t>(worker.weights.size()));
    for (const auto& [clock, weight] : worker.weights) {
      writer.put(clock);
      writer.put(std::bit_cast<std::uint64_t>(weight));
    }
  }
  writer.put(std::uint32_t{0});  // Contributions were here once; they have records of their own.
  put_bytes(out, writer.take());
}

void Domain::for_each_contribution(const std::function<void(Bytes)>& take) const {
  for (const auto& [clock, tables] : rounds_)
    for (const auto& [table, by_worker] : tables)
      for (const auto& [client, given] : by_worker) {
        wire::Writer writer;
        writer.put(clock);
        writer.put(table);
        writer.put(client);
        writer.put(static_cast<std::uint64_t>(given.ids.size()));
        writer.put_bytes(std::as_bytes(std::span(given.ids)));
        writer.put(static_cast<std::uint64_t>(given.values.size()));
        writer.put_bytes(std::as_bytes(std::span(given.values)));
        Bytes bytes;
        put_bytes(bytes, writer.take());
        take(std::move(bytes));
      }
}

Domain Domain::restore(wire::Reader& in) {
  Domain domain;
  domain.is_round_ = in.get<std::uint8_t>() != 0;
  domain.expected_ = in.get_count(limits::kWorldSize);
  domain.applied_ = in.get<std::uint64_t>();
  const std::uint32_t workers = in.get_count(limits::kPsClients);
  for (std::uint32_t i = 0; i < workers; ++i) {
    Worker& worker = domain.workers_[in.get<std::uint32_t>()];
    worker.presence = in.get_enum<Presence>(3);
    worker.clock = in.get<std::uint64_t>();
    const std::uint32_t weights = in.get_count(kRoundsAhead + 2);
    for (std::uint32_t k = 0; k < weights; ++k) {
      const auto clock = in.get<std::uint64_t>();
      worker.weights[clock] = std::bit_cast<double>(in.get<std::uint64_t>());
    }
  }
  const std::uint32_t contributions = in.get_count(1u << 24);
  for (std::uint32_t i = 0; i < contributions; ++i) domain.restore_contribution(in);
  return domain;
}

void Domain::restore_contribution(wire::Reader& in) {
  const auto get_items = [&in](auto& items) {
    using Item = typename std::remove_reference_t<decltype(items)>::value_type;
    const auto count = in.get<std::uint64_t>();
    if (count > limits::kPsPayloadBytes / sizeof(Item))
      throw ProtocolError(str("a contribution of ", count, " items is over the limit"));
    const auto bytes = in.take(static_cast<std::size_t>(count) * sizeof(Item));
    items.resize(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(items.data(), bytes.data(), bytes.size());
  };
  const auto clock = in.get<std::uint64_t>();
  const auto table = in.get<std::uint64_t>();
  Contribution& given = rounds_[clock][table][in.get<std::uint32_t>()];
  get_items(given.ids);
  get_items(given.values);
}

void Domain::stats(std::uint64_t id, JsonWriter& json) const {
  json.open_object().member("domain", id);
  json.member("rounds", is_round_).member("expected", std::uint64_t{expected_});
  json.member("applied", applied_).key("workers").open_array();
  for (const auto& [client, worker] : workers_) {
    const char* presence = worker.presence == Presence::kHere   ? "here"
                           : worker.presence == Presence::kLeft ? "left"
                                                                : "lost";
    json.open_object().member("worker", std::uint64_t{client});
    json.member("clock", worker.clock).member("presence", presence).close_object();
  }
  json.close_array().close_object();
}

}  // namespace gradring::ps
