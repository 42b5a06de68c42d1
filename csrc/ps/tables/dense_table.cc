#include "ps/tables/dense_table.h"

#include <algorithm>
#include <cstring>

#include "base/copy_bytes.h"
#include "base/error.h"
#include "ps/tables/initial.h"
#include "ps/tables/records.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kFloatsInRecord = 1u << 18;  // Of each field.

// Opens the body of a kDense record: floats [begin, begin + count) of the table, the weights and
// then each field of the state. count is in the record's head, fields in its `floats`.
struct DenseHead {
  std::uint64_t table = 0;
  std::uint64_t begin = 0;
  std::uint64_t steps = 0;
  std::uint64_t stamp = 0;
};
static_assert(sizeof(DenseHead) == 32);

// The weights and the fields of the state.
std::size_t fields_of(const TableSpec& spec) {
  kernels::StateField fields[4];
  return 1 + kernels::state_fields(spec.rule, 1, fields);
}

}  // namespace

DenseTable::DenseTable(TableSpec spec, std::uint32_t shard, std::uint32_t shards)
    : spec_(std::move(spec)) {
  require_valid(spec_);
  if (spec_.kind != TableKind::kDense)
    throw InvalidArgument(str("table \"", spec_.name, "\" is sparse, not dense"));
  range_ = dense_range(spec_, shard, shards);
  const std::size_t count = range_.end - range_.begin;
  weights_.resize(count);
  state_.resize(kernels::state_floats(spec_.rule, count));
  Draws(spec_.seed, table_id(spec_.name))
      .fill_dense(spec_.init, range_.begin, count, weights_.data());
  kernels::initialize_state(spec_.rule, count, state_.data());
}

bool DenseTable::apply(float* gradient) {
  ++stamp_;
  if (!kernels::is_finite(gradient, count())) return false;
  ++steps_;
  kernels::update_row(spec_.rule, steps_, count(), weights_.data(), state_.data(), gradient);
  return true;
}

void DenseTable::write(std::span<const float> weights, std::span<const float> state,
                       std::uint64_t steps) {
  if (weights.size() != weights_.size() || (!state.empty() && state.size() != state_.size()))
    throw InvalidArgument(str("table \"", spec_.name, "\": ", weights.size(), " + ", state.size(),
                              " floats for a part of ", weights_.size(), " + ", state_.size()));
  ++stamp_;
  std::copy(weights.begin(), weights.end(), weights_.begin());
  if (state.empty() && (!state_.empty() || steps == 0)) return;
  std::copy(state.begin(), state.end(), state_.begin());
  steps_ = steps;
}

void DenseTable::begin_snapshot(std::uint64_t since) {
  snapshot_.clear();
  snapshot_at_ = 0;
  if (since != 0 && stamp_ <= since) return;
  const std::size_t fields = fields_of(spec_);
  // All of it at once: a copy that grows would take up to three times as much meanwhile.
  const std::size_t records = (count() + kFloatsInRecord - 1) / kFloatsInRecord;
  snapshot_.reserve(records * (sizeof(RecordHead) + sizeof(DenseHead)) +
                    fields * count() * sizeof(float));
  for (std::size_t first = 0; first < count(); first += kFloatsInRecord) {
    const std::size_t taken = std::min(kFloatsInRecord, count() - first);
    const DenseHead head{.table = table_id(spec_.name),
                         .begin = range_.begin + first,
                         .steps = steps_,
                         .stamp = stamp_};
    std::byte* body = append_record(
        snapshot_, TableRecordKind::kDense, static_cast<std::uint32_t>(taken),
        static_cast<std::uint32_t>(fields), sizeof head + fields * taken * sizeof(float));
    std::memcpy(body, &head, sizeof head);
    body += sizeof head;
    std::memcpy(body, weights_.data() + first, taken * sizeof(float));
    for (std::size_t field = 1; field < fields; ++field)
      std::memcpy(body + field * taken * sizeof(float),
                  state_.data() + (field - 1) * count() + first, taken * sizeof(float));
  }
}

bool DenseTable::next_snapshot_piece(std::size_t most_bytes, SnapshotBytes& out) {
  const std::size_t before = out.size();
  std::span<const std::byte> rest = std::span<const std::byte>(snapshot_).subspan(snapshot_at_);
  while (!rest.empty() && (out.size() == before || out.size() - before < most_bytes)) {
    const std::size_t rest_bytes = rest.size();
    take_record(rest);
    const std::size_t taken = rest_bytes - rest.size();
    const auto* const record = snapshot_.data() + snapshot_at_;
    out.append_run({record, taken});
    snapshot_at_ += taken;
  }
  return out.size() > before;
}

void DenseTable::end_snapshot() {
  give_back(snapshot_);
  snapshot_at_ = 0;
}

void DenseTable::load_piece(std::span<const std::byte> piece) {
  const std::size_t fields = fields_of(spec_);
  while (!piece.empty()) {
    const TableRecord record = take_record(piece);
    const std::size_t taken = record.head.count;
    if (record.head.kind != TableRecordKind::kDense || record.head.floats != fields ||
        record.body.size() != sizeof(DenseHead) + fields * taken * sizeof(float))
      throw ProtocolError(
          str("a snapshot of dense table \"", spec_.name, "\" has a record that is no part of it"));
    const auto head = item_at<DenseHead>(record.body, 0);
    if (head.table != table_id(spec_.name) || head.stamp > kLargestStamp ||
        head.begin > spec_.count || taken > spec_.count - head.begin)
      throw ProtocolError(str("a snapshot of dense table \"", spec_.name, "\" has floats ",
                              head.begin, " .. ", head.begin + taken, " of ", spec_.count,
                              ", or is another table's"));
    const std::uint64_t begin = std::max(head.begin, range_.begin);
    const std::uint64_t end = std::min(head.begin + taken, range_.end);
    stamp_ = std::max(stamp_, head.stamp);
    if (begin >= end) continue;
    steps_ = std::max(least_steps_, head.steps);
    const std::byte* from = record.body.data() + sizeof head + (begin - head.begin) * sizeof(float);
    const std::size_t bytes = (end - begin) * sizeof(float);
    copy_bytes(weights_.data() + (begin - range_.begin), from, bytes);
    for (std::size_t field = 1; field < fields; ++field)
      copy_bytes(state_.data() + (field - 1) * count() + (begin - range_.begin),
                 from + field * taken * sizeof(float), bytes);
  }
}

}  // namespace gradring::ps
