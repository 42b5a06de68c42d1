// What a simulation of the parameter server is judged by once something is whole: a checkpoint, or
// the end.
#include <algorithm>

#include "base/text.h"
#include "ps/tables/partition.h"
#include "sim/ps/probe.h"
#include "sim/ps/simulation.h"

namespace gradring::sim {
namespace {

// Reads what was counted wherever it is.
PsLedger::Reader reader_of(std::vector<std::unique_ptr<PsProbe>>& probes,
                           const PsScenario& scenario) {
  PsLedger::Reader reader;
  reader.row = [&probes, columns = scenario.clients](std::uint64_t id) {
    auto row =
        probes[ps::shard_of(id, static_cast<std::uint32_t>(probes.size()))]->row(kCounts, id);
    row.resize(columns);  // No table: nobody has made it yet.
    return row;
  };
  reader.dense.resize(std::size_t{kDenseFloats} * scenario.shards());
  if (scenario.work == PsWork::kRounds) return reader;  // Averages are in the dense table.
  const auto shards = static_cast<std::uint32_t>(probes.size());
  for (std::uint32_t shard = 0; shard < shards; ++shard) {
    const auto part = probes[shard]->dense(kDense);
    if (part.empty()) continue;  // Nobody has made it here.
    const auto floats = testing::floats_of(std::span(part).subspan(sizeof(std::uint64_t)));
    const ps::DenseRange range = ps::dense_range(reader.dense.size(), shard, shards);
    std::copy(floats.begin(), floats.end(),
              reader.dense.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return reader;
}

}  // namespace

std::unique_ptr<ps::Shard> PsSimulation::replayed(std::uint32_t shard, std::size_t records) {
  PsServer& server = *servers_[shard / scenario_.threads];
  static testing::MemoryJournal nowhere;
  auto made = server.blank(shard, nowhere);
  const auto& log = server.disk(shard).log;
  for (std::size_t at = 0; at < records; ++at)
    made->replay(log[at].header, log[at].payload, log[at].client, log[at].incarnation);
  nowhere.records.clear();
  return made;
}

std::string PsSimulation::compare(ps::Shard& one, ps::Shard& other) const {
  PsProbe left(one, network_.now());
  PsProbe right(other, network_.now());
  for (const std::string& table : {kCounts, kAdagrad}) {
    const auto rows = left.rows(table);
    const auto others = right.rows(table);
    if (rows.size() != others.size())
      return str(rows.size(), " rows of table ", table, " and ", others.size());
    for (const auto& [id, row] : rows) {
      const auto found = others.find(id);
      if (found == others.end()) return str("row ", id, " of table ", table, " is missing");
      if (found->second != row) return str("row ", id, " of table ", table, " is another");
    }
  }
  if (left.dense(kDense) != right.dense(kDense)) return "the dense table is another";
  if (left.rule(kAdagrad) != right.rule(kAdagrad)) return "the rule is another";
  return "";
}

void PsSimulation::check_cut(std::uint64_t cut, const std::vector<std::size_t>& done_before) {
  trace_.note(network_.now(), -1, "a checkpoint is judged");
  world_.ledger.settle();
  testing::MemoryJournal nowhere;
  std::vector<std::unique_ptr<ps::Shard>> parts;
  std::vector<std::unique_ptr<PsProbe>> beside;
  for (std::uint32_t shard = 0; shard < scenario_.shards(); ++shard) {
    PsServer& server = *servers_[shard / scenario_.threads];
    PsDisk& disk = server.disk(shard);
    if (!disk.checkpoints.contains(cut))
      return world_.complain(str("shard ", shard, " has no part of a finished checkpoint"));
    ps::Shard& restored = *parts.emplace_back(server.blank(shard, nowhere));
    restored.begin_load();
    restored.load_piece(disk.checkpoints[cut]);
    restored.commit_load(true);
    const auto again = replayed(shard, disk.position_of(cut));
    const std::string difference = compare(restored, *again);
    if (!difference.empty())
      return world_.complain(str("shard ", shard, ": a checkpoint is not what the log says up to ",
                                 "its cut: ", difference));
    beside.push_back(std::make_unique<PsProbe>(restored, network_.now()));
  }
  if (scenario_.is_gentle()) check_rules("a checkpoint", beside);
  // Whole pushes only: read from a cluster of another size.
  const auto others = static_cast<std::uint32_t>(1 + dice_.below(4));
  std::vector<std::unique_ptr<ps::Shard>> shards;
  std::vector<std::unique_ptr<PsProbe>> probes;
  for (std::uint32_t other = 0; other < others; ++other) {
    ps::ShardOptions options;
    options.shard = other;
    options.shards = others;
    shards.push_back(std::make_unique<ps::Shard>(options, nowhere));
    shards.back()->begin_load();
    for (std::uint32_t shard = 0; shard < scenario_.shards(); ++shard)
      shards.back()->load_piece(servers_[shard / scenario_.threads]->disk(shard).checkpoints[cut]);
    shards.back()->commit_load(false);
    probes.push_back(std::make_unique<PsProbe>(*shards.back(), network_.now()));
  }
  check_rules("a checkpoint that other shards have loaded", probes);
  const std::string wrong =
      world_.ledger.check_cut(done_before, reader_of(probes, scenario_),
                              scenario_.is_gentle() ? std::set<std::uint32_t>() : world_.troubled);
  if (!wrong.empty()) world_.complain(str("a checkpoint: ", wrong));
}

// Of all shards the same, unless somebody's change is half done and will stay so.
void PsSimulation::check_rules(const std::string& where,
                               const std::vector<std::unique_ptr<PsProbe>>& probes) {
  std::set<std::string> rules;
  for (const auto& probe : probes) rules.insert(probe->rule(kAdagrad));
  rules.erase("");  // Who made the table was cut off.
  ++world_.rules_compared;
  if (rules.size() > 1)
    world_.complain(
        str(where, ": shards have different rules: ", *rules.begin(), " and ", *rules.rbegin()));
}

void PsSimulation::check_end() {
  if (!scenario_.has_poison)
    for (const auto& server : servers_)
      if (!server->refusal().empty())
        return world_.complain(str("a server understood nothing: ", server->refusal()));
  world_.ledger.settle();
  std::vector<std::unique_ptr<PsProbe>> probes;
  for (std::uint32_t shard = 0; shard < scenario_.shards(); ++shard) {
    PsServer& server = *servers_[shard / scenario_.threads];
    if (!server.is_up()) return world_.complain("a server did not come back");
    const auto again = replayed(shard, server.disk(shard).log.size());
    const std::string difference = compare(server.shard(shard), *again);
    if (!difference.empty())
      return world_.complain(str("shard ", shard, " is not what its log says: ", difference));
    probes.push_back(std::make_unique<PsProbe>(server.shard(shard), network_.now()));
  }
  if (scenario_.has_log && world_.rules_under_way == 0) check_rules("at the end", probes);
  const PsLedger::Reader read = reader_of(probes, scenario_);
  if (scenario_.has_log) {
    const std::string wrong = world_.ledger.check_end(read);
    if (!wrong.empty()) return world_.complain(str("at the end: ", wrong));
  }
  if (scenario_.is_gentle()) check_claims();
  if (world_.replicas.size() == scenario_.clients && world_.calls_failed == 0) check_replicas(read);
}

// Nothing failed, and nobody was crashed: all numbers were told.
void PsSimulation::check_claims() {
  for (const auto& [counter, sent] : world_.claims_sent) {
    ++world_.claims_compared;
    const std::size_t told = world_.claims[counter].size();
    if (told != sent)
      world_.complain(
          str(told, " numbers of counter ", counter, " were told, ", sent, " asked for"));
  }
}

// Replicas are equal once everybody has given everything.
void PsSimulation::check_replicas(const PsLedger::Reader& read) {
  for (const auto& [client, replica] : world_.replicas) {
    ++world_.replicas_compared;
    for (std::uint64_t id = 0; id < 64; ++id) {
      const auto found = replica.find(id);
      const std::vector<float> there = read.row(id);
      const bool is_nothing =
          std::all_of(there.begin(), there.end(), [](float v) { return v == 0; });
      if (found == replica.end() ? !is_nothing : found->second != there)
        return world_.complain(
            str("client ", client, "'s replica of row ", id, " differs from the server's"));
    }
  }
}

}  // namespace gradring::sim
