#include "ps/shard/store.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/config.h"
#include "ps/protocol/row_codec.h"
#include "ps/tables/merge.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kStalenessBuckets = 1024;
constexpr std::size_t kPieceFloatsMultiple = 16;
// What is in a payload besides a dense table's floats: a tail, a round, a count of steps.
constexpr std::size_t kBesideFloats = std::size_t{16} << 10;
constexpr std::uint32_t kRoundWriter = 0xfffffffe;  // Nobody's number: a round is everybody's.

std::size_t row_width(const Table& table) {
  return table.sparse ? table.spec.dim : 1;
}

std::span<const float> floats_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::size_t bucket_of(std::uint64_t staleness) {
  return std::min<std::size_t>(staleness, kStalenessBuckets - 1);
}

void reserve_staleness(Table& table, std::uint64_t staleness) {
  const std::size_t wanted = bucket_of(staleness) + 1;
  if (wanted > table.staleness.size())
    reserve_more(table.staleness, wanted - table.staleness.size());
}

void note_staleness(Table& table, std::uint64_t staleness) {
  const std::size_t bucket = bucket_of(staleness);
  if (table.staleness.size() <= bucket) table.staleness.resize(bucket + 1);
  ++table.staleness[bucket];
}

// total += weight * values, in float32, each product and each sum rounded. A weight of 1 leaves the
// values as they are.
void add_weighted(float* total, const float* values, std::size_t count, float weight,
                  bool is_first) {
  if (is_first)
    for (std::size_t i = 0; i < count; ++i) total[i] = weight * values[i];
  else
    for (std::size_t i = 0; i < count; ++i) total[i] += weight * values[i];
}

}  // namespace

// All of a shard's part, state and all, travels in one frame.
void Store::require_fits_payload(const TableSpec& spec) const {
  const DenseRange range = dense_range(spec, shard_, shards_);
  const std::uint64_t each = 1 + kernels::state_floats(spec.rule, 1);
  const std::uint64_t most = (limits::kPsPayloadBytes - kBesideFloats) / sizeof(float) / each /
                             kPieceFloatsMultiple * kPieceFloatsMultiple;
  if (range.end - range.begin > most)
    throw InvalidArgument(str("table '", spec.name, "': a shard has at most ", most,
                              " of its floats, here ", range.end - range.begin,
                              spec.rule.clip_norm > 0
                                  ? "; with clip_norm it is whole on one: use several tables"
                                  : "; use more shards or several tables"));
}

Table& Store::make(const TableSpec& spec) {
  require_valid(spec);
  const std::uint64_t id = table_id(spec.name);
  const auto found = tables_.find(id);
  if (found != tables_.end()) {
    if (found->second.spec.name != spec.name)
      throw InvalidArgument(str("tables '", spec.name, "' and '", found->second.spec.name,
                                "' have the same hash; choose another name"));
    TableSpec in_force = found->second.spec;
    in_force.rule = found->second.rule();
    if (found->second.spec != spec && in_force != spec)
      throw Mismatch(str("table '", spec.name, "' is there already with other settings: ",
                         difference(found->second.spec, spec)));
    return found->second;
  }
  if (tables_.size() >= limits::kPsTables)
    throw InvalidArgument(str("a server has at most ", limits::kPsTables, " tables"));
  if (spec.kind == TableKind::kDense) require_fits_payload(spec);
  Table table;
  table.spec = spec;
  table.layout = layout_of(spec);
  if (spec.kind == TableKind::kSparse) {
    table.sparse = std::make_unique<SparseTable>(spec);
    table.sparse->begin_at(tick());
  } else {
    const DenseRange range = dense_range(spec, shard_, shards_);
    if ((range.end - range.begin) * sizeof(float) > options_.dense_bytes) throw std::bad_alloc();
    table.dense = std::make_unique<DenseTable>(spec, shard_, shards_);
  }
  return tables_.emplace(id, std::move(table)).first->second;
}

std::uint32_t Store::tick() const {
  std::uint32_t latest = told_tick_;
  for (const auto& [id, table] : tables_)
    if (table.sparse) latest = std::max(latest, table.sparse->tick());
  return latest;
}

Table& Store::require(std::uint64_t id) {
  const auto found = tables_.find(id);
  if (found == tables_.end())
    throw InvalidArgument(
        str("there is no table with number ", id,
            "; make it first (a server that restarted without its log has none)"));
  return found->second;
}

Table& Store::require(std::uint64_t id, std::uint32_t layout) {
  Table& table = require(id);
  if (layout != 0 && layout != table.layout)
    throw InvalidArgument(str("table '", table.spec.name, "' was made anew, with another length, ",
                              "rule or state, since this handle of it: make it again"));
  return table;
}

Table& Store::require(std::uint64_t id, std::uint32_t layout, TableKind kind) {
  Table& table = require(id, layout);
  if (table.spec.kind != kind)
    throw InvalidArgument(
        str("table '", table.spec.name, "' is ", kind == TableKind::kSparse ? "dense" : "sparse"));
  return table;
}

void Store::require_ours(std::span<const std::uint64_t> ids) const {
  if (shards_ == 1) return;
  for (const std::uint64_t id : ids)
    if (shard_of(id, shards_) != shard_)
      throw InvalidArgument(str("id ", id, " belongs to shard ", shard_of(id, shards_), " of ",
                                shards_, ", not to ", shard_));
}

void Store::require_fit(const Table& table, const Gradients& gradients) const {
  const std::size_t rows = table.sparse ? gradients.ids.size() : table.dense->count();
  const std::size_t wanted = table.sparse
                                 ? encoded_rows_bytes(gradients.codec, table.spec.dim, rows)
                                 : encoded_rows_bytes(gradients.codec, rows, rows == 0 ? 0 : 1);
  if (gradients.values.size() != wanted)
    throw InvalidArgument(str("push to '", table.spec.name, "': ", gradients.values.size(),
                              " bytes of gradients where ", wanted, " belong"));
  require_ours(gradients.ids);
}

float* Store::decoded(const Table& table, const Gradients& gradients, std::size_t count) {
  if (gradients.codec == wire::RowCodec::kFloat32)
    return reinterpret_cast<float*>(gradients.values.data());
  const std::size_t width = row_width(table);
  scratch_.resize(count * width);
  if (table.sparse)
    decode_rows(gradients.codec, width, count, gradients.values.data(), scratch_.data());
  else if (count > 0)
    decode_rows(gradients.codec, count, 1, gradients.values.data(), scratch_.data());
  return scratch_.data();
}

void Store::reserve(Table& table, const wire::PsHeader& change, std::size_t rows,
                    std::size_t fresh) {
  const std::size_t count = table.sparse ? rows : table.dense->count();
  if (change.codec != wire::RowCodec::kFloat32) scratch_.reserve(count * row_width(table));
  if ((change.flags & wire::kTellsSkipped) != 0) reserve_more(skipped_, (rows + 63) / 64);
  if ((change.flags & wire::kIsLastPart) != 0)
    reserve_staleness(table, table.pushes - std::min(change.a, table.pushes));
  if (table.sparse) table.sparse->reserve(rows, fresh);
}

Outcome Store::push(Table& table, const Gradients& gradients, std::uint32_t client,
                    const Pushed& pushed) {
  require_fit(table, gradients);
  Outcome outcome;
  if (table.sparse) {
    const std::size_t rows = gradients.ids.size();
    const Applied applied = table.sparse->apply(gradients.ids, decoded(table, gradients, rows),
                                                client, table.steps + 1);
    outcome.refused = applied.refused;
    outcome.not_admitted = applied.not_admitted;
    if (pushed.tells_skipped && !applied.skipped.empty()) {
      outcome.skipped.swap(skipped_);
      outcome.skipped.assign((rows + 63) / 64, 0);
      for (const std::size_t row : applied.skipped) outcome.skipped[row / 64] |= 1ull << (row % 64);
    }
    table.rows_pushed += rows;
  } else if (table.dense->count() > 0 &&
             !table.dense->apply(decoded(table, gradients, table.dense->count()))) {
    outcome.refused = 1;
  }
  table.refused += outcome.refused;
  table.not_admitted += outcome.not_admitted;
  if (pushed.is_last_part) {
    outcome.staleness = table.pushes - std::min(pushed.seen, table.pushes);
    note_staleness(table, outcome.staleness);
    ++table.pushes;
    ++table.steps;
  }
  return outcome;
}

void Store::contribute(Table& table, const Gradients& gradients, Contribution& contribution) {
  const std::size_t rows = table.sparse ? gradients.ids.size() : table.dense->count();
  const std::size_t count = rows * row_width(table);
  if (!table.sparse && !contribution.values.empty())
    throw InvalidArgument(str("two pushes to '", table.spec.name, "' in one round"));
  const std::size_t bytes =
      (contribution.ids.size() + gradients.ids.size()) * sizeof(gradients.ids[0]) +
      (contribution.values.size() + count) * sizeof(float);
  if (bytes > options_.contribution_bytes)
    throw InvalidArgument(str("push to '", table.spec.name, "': with it a worker gives ", bytes,
                              " bytes to one round on one server, and at most ",
                              options_.contribution_bytes,
                              " are taken; push fewer rows in a round, or use more servers"));
  const float* values = decoded(table, gradients, rows);
  contribution.ids.insert(contribution.ids.end(), gradients.ids.begin(), gradients.ids.end());
  contribution.values.insert(contribution.values.end(), values, values + count);
}

void Store::apply_round(ReadyRound round) {
  double total = 0;
  for (const auto& [worker, weight] : round.weights) total += weight;
  for (auto& [id, given] : round.tables) {
    // Of no examples, though it came: its worker has given it up. What only it touched nobody has.
    std::erase_if(given, [&](const auto& one) {
      const auto weight = round.weights.find(one.first);
      return weight == round.weights.end() || weight->second == 0;
    });
    const auto found = tables_.find(id);
    if (found == tables_.end() || given.empty()) continue;
    Table& table = found->second;
    if (table.sparse)
      average_rows(table, given, round.weights, static_cast<float>(total));
    else
      average_dense(table, given, round.weights, static_cast<float>(total));
    ++table.pushes;
    ++table.steps;
  }
}

void Store::average_rows(Table& table, const std::map<std::uint32_t, Contribution>& given,
                         const std::map<std::uint32_t, double>& weights, float total) {
  const std::size_t dim = table.spec.dim;
  // Worker by worker, as they pushed them; each row times its worker's weight.
  std::vector<std::uint64_t> ids;
  Floats rows;
  std::size_t all_ids = 0;
  for (const auto& [worker, contribution] : given) all_ids += contribution.ids.size();
  ids.reserve(all_ids);
  rows.reserve(all_ids * dim);
  for (const auto& [worker, contribution] : given) {
    const auto weight = weights.find(worker);
    const std::size_t begin = rows.size();
    ids.insert(ids.end(), contribution.ids.begin(), contribution.ids.end());
    rows.resize(begin + contribution.values.size());
    add_weighted(rows.data() + begin, contribution.values.data(), contribution.values.size(),
                 weight == weights.end() ? 0 : static_cast<float>(weight->second), true);
  }
  const Distinct distinct(ids, 1);
  const std::size_t count = distinct.ids().size();
  Floats sums(count * dim);
  distinct.sum(0, count, rows.data(), dim, sums.data());
  for (float& value : sums) value /= total;
  const Applied applied =
      table.sparse->apply(distinct.ids(), sums.data(), kRoundWriter, table.steps + 1);
  table.refused += applied.refused;
  table.not_admitted += applied.not_admitted;
  table.rows_pushed += count;
}

void Store::average_dense(Table& table, const std::map<std::uint32_t, Contribution>& given,
                          const std::map<std::uint32_t, double>& weights, float total) {
  const std::size_t count = table.dense->count();
  if (count == 0) return;
  Floats sum(count);
  bool is_first = true;
  for (const auto& [worker, contribution] : given) {
    if (contribution.values.size() != count)
      throw ProtocolError(str("a contribution of ", contribution.values.size(), " floats to ",
                              count, " of table '", table.spec.name, "'"));
    const auto weight = weights.find(worker);
    add_weighted(sum.data(), contribution.values.data(), count,
                 weight == weights.end() ? 0 : static_cast<float>(weight->second), is_first);
    is_first = false;
  }
  for (float& value : sum) value /= total;
  if (!table.dense->apply(sum.data())) ++table.refused;
}

void Store::set_rule(Table& table, const kernels::Rule& rule, RuleOrder order) {
  require_successor(table.spec, rule);
  if (table.sparse)
    table.sparse->set_rule(rule);
  else
    table.dense->set_rule(rule);
  table.rule_order = order;
}

bool Store::change_rule(Table& table, const kernels::Rule& rule, RuleOrder order) {
  require_successor(table.spec, rule);
  // Logs of before have changes without a number, in the order in which they came.
  if (order.number == 0)
    order = table.rule_order;
  else if (order <= table.rule_order)
    return table.rule() == rule;
  set_rule(table, rule, order);
  return true;
}

void Store::write(Table& table, std::uint32_t count, std::span<const std::byte> values,
                  std::uint32_t client, std::optional<std::uint64_t> steps) {
  if (!table.sparse) {
    const std::size_t floats = table.dense->count();
    const auto all = floats_in(values.subspan(std::min<std::size_t>(8, values.size())));
    if (values.size() < 8 ||
        (all.size() != floats && all.size() != floats + table.dense->state().size()))
      throw InvalidArgument(str("write to '", table.spec.name, "': ", values.size(),
                                " bytes do not fit its ", floats, " floats here"));
    std::uint64_t own_steps = 0;
    std::memcpy(&own_steps, values.data(), sizeof own_steps);
    table.dense->write(all.first(floats), all.subspan(floats), own_steps);
    return;
  }
  const std::size_t row_bytes = sizeof(RowMeta) + table.sparse->row_floats() * sizeof(float);
  if (values.size() != row_bytes * count)
    throw InvalidArgument(str("write to '", table.spec.name, "': ", values.size(), " bytes for ",
                              count, " rows of ", row_bytes));
  const auto* metas = reinterpret_cast<const RowMeta*>(values.data());
  for (std::uint32_t i = 0; i < count; ++i) require_ours(std::span(&metas[i].id, 1));
  table.sparse->write({metas, count}, floats_in(values.subspan(sizeof(RowMeta) * count)).data(),
                      client);
  if (steps) table.steps = *steps;
}

void Store::read_rows(Table& table, std::span<const std::uint64_t> ids, wire::RowCodec codec,
                      bool with_versions, Bytes& out) {
  const std::size_t dim = table.spec.dim;
  const std::size_t at = out.size();
  const std::size_t rows_bytes = encoded_rows_bytes(codec, dim, ids.size());
  out.resize(at + rows_bytes + (with_versions ? ids.size() * sizeof(std::uint32_t) : 0));
  if (codec == wire::RowCodec::kFloat32) {
    table.sparse->gather(ids, reinterpret_cast<float*>(out.data() + at));
  } else {
    scratch_.resize(ids.size() * dim);
    table.sparse->gather(ids, scratch_.data());
    encode_rows(codec, dim, ids.size(), scratch_.data(), nullptr, out.data() + at);
  }
  if (with_versions) {
    std::vector<std::uint32_t> versions(ids.size());
    table.sparse->versions(ids, versions.data());
    if (!versions.empty())
      std::memcpy(out.data() + at + rows_bytes, versions.data(),
                  versions.size() * sizeof(std::uint32_t));
  }
  table.rows_pulled += ids.size();
}

void Store::read_dense(const Table& table, wire::RowCodec codec, Bytes& out) const {
  const auto weights = table.dense->weights();
  if (weights.empty()) return;
  const std::size_t at = out.size();
  out.resize(at + encoded_rows_bytes(codec, weights.size(), 1));
  encode_rows(codec, weights.size(), 1, weights.data(), nullptr, out.data() + at);
}

std::shared_ptr<const Bytes> Store::share_dense(Table& table, wire::RowCodec codec) const {
  auto bytes = table.copy.bytes.lock();
  if (bytes && table.copy.stamp == table.stamp() && table.copy.codec == codec) return bytes;
  auto fresh = std::make_shared<Bytes>();
  read_dense(table, codec, *fresh);
  table.copy = {table.stamp(), codec, fresh};
  return fresh;
}

void Store::stats(JsonWriter& json) const {
  json.open_array();
  for (const auto& [id, table] : tables_) {
    json.open_object().member("name", std::string_view(table.spec.name));
    json.member("kind", table.sparse ? "sparse" : "dense");
    json.member("rule", name(table.rule().kind)).member("lr", table.rule().lr);
    json.member("rows", std::uint64_t{table.sparse ? table.sparse->size() : table.dense->count()});
    json.member("bytes", table.sparse ? table.sparse->bytes() : table.dense->bytes());
    json.member("stamp", table.stamp()).member("pushes", table.pushes);
    json.member("tick", std::uint64_t{table.sparse ? table.sparse->tick() : 0});
    json.member("steps", table.steps).member("rows_pushed", table.rows_pushed);
    json.member("rows_pulled", table.rows_pulled).member("refused", table.refused);
    json.member("not_admitted", table.not_admitted).key("staleness").open_array();
    for (const std::uint64_t count : table.staleness) json.value(count);
    json.close_array().close_object();
  }
  json.close_array();
}

}  // namespace gradring::ps
