// A sparse table's snapshots: reading the table out as it was while it changes, and taking such
// records in. docs/tables.md has the format.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ps/tables/records.h"
#include "ps/tables/sparse_table_impl.h"

namespace gradring::ps {
namespace {

static_assert(sizeof(RowMeta) == 40 && std::is_trivially_copyable_v<RowMeta>);

struct SparseHead {
  std::uint64_t table = 0;
  std::uint64_t stamp = 0;
  std::uint64_t since = 0;
  std::uint32_t dim = 0;
  std::uint32_t state_floats = 0;
  std::uint32_t tick = 0;
  std::uint32_t version_floor = 0;
};
static_assert(sizeof(SparseHead) == 40);

struct CandidateRecord {
  std::uint64_t id = 0;
  std::uint32_t count = 0;
  std::uint32_t tick = 0;
};
static_assert(sizeof(CandidateRecord) == 16);

template <typename Item>
void append_items(TableRecordKind kind, const std::vector<Item>& items,
                  std::vector<std::byte>& out) {
  if (items.empty()) return;
  std::byte* const body = append_record(out, kind, static_cast<std::uint32_t>(items.size()), 0,
                                        items.size() * sizeof(Item));
  std::memcpy(body, items.data(), items.size() * sizeof(Item));
}

}  // namespace

void RecordQueue::move_to(SnapshotBytes& out, std::size_t most) {
  const auto waiting = std::span<const std::byte>(bytes_).subspan(begin_);
  std::span<const std::byte> rest = waiting;
  while (!rest.empty() && out.size() < most) {
    const std::span<const std::byte> before = rest;
    take_record(rest);
    out.append(before.first(before.size() - rest.size()));
  }
  begin_ += waiting.size() - rest.size();
  if (!is_empty()) return;
  bytes_.clear();
  begin_ = 0;
}

bool SparseTable::Impl::is_in_snapshot(std::uint64_t row) const {
  const std::uint64_t last = rows.notes(row).stamp;  // 0 if nobody has it.
  return last > snapshot->since && last <= snapshot->stamp;
}

// For so many rows, and for all candidates that are not read out yet.
void SparseTable::Impl::reserve_aside(std::size_t count) {
  TableSnapshot& s = *snapshot;
  reserve_more(s.aside, count);
  reserve_more(s.aside_floats, count * (dim + state));
  if (has_entry && !s.is_segment_done.all())
    reserve_more(s.candidates.back(), candidates.size() * sizeof(CandidateRecord) +
                                          HashIndex::kSegments * sizeof(RecordHead));
}

void SparseTable::Impl::put_row_aside(std::uint64_t row) {
  TableSnapshot& s = *snapshot;
  if (row < s.cursor || row >= s.end || !is_in_snapshot(row)) return;
  s.aside.push_back(meta(row));
  const float* const floats = rows.floats(row);
  s.aside_floats.insert(s.aside_floats.end(), floats, floats + dim + state);
}

void SparseTable::Impl::put_candidates_aside(std::size_t segment) {
  TableSnapshot& s = *snapshot;
  if (s.is_segment_done[segment]) return;
  s.is_segment_done.set(segment);
  const std::size_t count = candidates.size_in(segment);
  if (count == 0) return;
  std::byte* to =
      append_record(s.candidates.back(), TableRecordKind::kCandidates,
                    static_cast<std::uint32_t>(count), 0, count * sizeof(CandidateRecord));
  candidates.for_each_in(segment, [&](std::uint64_t id, std::uint64_t packed) {
    const Candidate candidate = Candidate::from(packed);
    const CandidateRecord record{id, candidate.count, candidate.tick};
    std::memcpy(to, &record, sizeof record);
    to += sizeof record;
  });
}

void SparseTable::begin_snapshot(std::uint64_t since) {
  Impl& t = *impl_;
  if (t.snapshot != nullptr)
    throw InvalidArgument(str("table \"", t.spec.name, "\": a snapshot is already being taken"));
  if (since > t.stamp || (since != 0 && since < t.gone_complete_after))
    throw InvalidArgument(str("table \"", t.spec.name, "\": what changed since stamp ", since,
                              " is not known any more, only since ", t.gone_complete_after,
                              " (now ", t.stamp, "): save in full"));
  auto snapshot = std::make_unique<TableSnapshot>();
  snapshot->since = since;
  snapshot->stamp = t.stamp;
  snapshot->end = t.rows.end();
  const SparseHead head{.table = table_id(t.spec.name),
                        .stamp = t.stamp,
                        .since = since,
                        .dim = static_cast<std::uint32_t>(t.dim),
                        .state_floats = static_cast<std::uint32_t>(t.state),
                        .tick = t.tick,
                        .version_floor = t.version_floor};
  append_items(TableRecordKind::kSparse, std::vector{head}, snapshot->records.back());
  if (since != 0) {
    constexpr std::size_t kIdsInRecord = 1u << 16;
    std::vector<std::uint64_t> ids;
    for (std::size_t segment = 0; segment < HashIndex::kSegments; ++segment) {
      for (const HashIndex* gone : {&t.gone, &t.gone_before})
        gone->for_each_in(segment, [&](std::uint64_t id, std::uint64_t stamp) {
          if (stamp > since) ids.push_back(id);
          if (ids.size() < kIdsInRecord) return;
          append_items(TableRecordKind::kGone, ids, snapshot->records.back());
          ids.clear();
        });
    }
    append_items(TableRecordKind::kGone, ids, snapshot->records.back());
  }
  t.snapshot = std::move(snapshot);
}

// Begins a record of rows. What comes behind these, the rows' floats, is for the caller to append.
void SparseTable::Impl::append_metas(std::span<const RowMeta> metas, SnapshotBytes& out) const {
  const std::size_t row_bytes = sizeof(RowMeta) + (dim + state) * sizeof(float);
  const RecordHead head{.kind = TableRecordKind::kRows,
                        .count = static_cast<std::uint32_t>(metas.size()),
                        .floats = static_cast<std::uint32_t>(dim + state),
                        .body_bytes = metas.size() * row_bytes};
  out.append(std::as_bytes(std::span(&head, 1)));
  out.append_run(std::as_bytes(metas));
}

// The snapshot's rows from its cursor on, as one record.
void SparseTable::Impl::append_rows(std::size_t most_rows, SnapshotBytes& out) {
  TableSnapshot& s = *snapshot;
  s.numbers.clear();
  s.metas.clear();
  for (; s.cursor < s.end && s.numbers.size() < most_rows; ++s.cursor) {
    if (!is_in_snapshot(s.cursor)) continue;
    s.numbers.push_back(s.cursor);
    s.metas.push_back(meta(s.cursor));
  }
  if (s.numbers.empty()) return;
  append_metas(s.metas, out);
  const std::size_t floats = dim + state;
  for (std::size_t i = 0; i < s.numbers.size();) {
    const float* const begin = rows.floats(s.numbers[i]);
    std::size_t count = 1;  // Of rows that lie one behind the other.
    while (i + count < s.numbers.size() &&
           rows.floats(s.numbers[i + count]) == begin + count * floats)
      ++count;
    out.append_run(std::as_bytes(std::span(begin, count * floats)));
    i += count;
  }
}

// As many of the rows put aside as fit, from the last one back.
void SparseTable::Impl::append_aside(std::size_t most_rows, SnapshotBytes& out) {
  TableSnapshot& s = *snapshot;
  const std::size_t count = std::min(most_rows, s.aside.size());
  if (count == 0) return;
  const std::size_t first = s.aside.size() - count;
  const std::size_t floats = dim + state;
  append_metas(std::span(s.aside).subspan(first), out);
  out.append_run(std::as_bytes(std::span(s.aside_floats).subspan(first * floats)));
  s.aside.resize(first);
  s.aside_floats.resize(first * floats);
}

// Segment by segment, until `out` has `most` bytes or enough was looked at: what had grown for many
// may have few left.
void SparseTable::Impl::append_candidates(std::size_t most, SnapshotBytes& out) {
  constexpr std::size_t kSlots = std::size_t{1} << 18;
  TableSnapshot& s = *snapshot;
  const std::size_t before = out.size();
  for (std::size_t looked_at = 0; out.size() < most;) {
    if (s.candidates.is_empty()) {
      if (s.segment == HashIndex::kSegments || (looked_at > kSlots && out.size() > before)) return;
      if (!s.is_segment_done[s.segment]) looked_at += candidates.slots_in(s.segment);
      put_candidates_aside(s.segment++);
    }
    s.candidates.move_to(out, most);
  }
}

bool SparseTable::next_snapshot_piece(std::size_t most_bytes, SnapshotBytes& out) {
  Impl& t = *impl_;
  if (t.snapshot == nullptr) return false;
  TableSnapshot& s = *t.snapshot;
  const std::size_t full = out.size() + most_bytes;
  const std::size_t row_bytes = sizeof(RowMeta) + row_floats() * sizeof(float);
  const auto room = [&] { return (full - std::min(full, out.size())) / row_bytes; };
  const std::size_t before = out.size();
  s.records.move_to(out, full);
  const auto is_full = [&] { return out.size() > before && room() == 0; };
  if (!is_full()) t.append_aside(std::max<std::size_t>(room(), 1), out);
  if (!is_full()) t.append_rows(std::max<std::size_t>(room(), 1), out);
  if (!is_full()) t.append_candidates(full, out);
  return out.size() > before;
}

void SparseTable::end_snapshot() {
  impl_->snapshot.reset();
}

void SparseTable::Impl::load_head(const TableRecord& record) {
  require_items(record, sizeof(SparseHead));
  if (record.head.count != 1) throw ProtocolError("a snapshot has not one head in its record");
  const auto head = item_at<SparseHead>(record.body, 0);
  if (head.table != table_id(spec.name) || head.dim != dim || head.state_floats != state)
    throw ProtocolError(str("a snapshot of another table: its rows have ", head.dim, " + ",
                            head.state_floats, " floats, those of \"", spec.name, "\" ", dim, " + ",
                            state));
  if (head.stamp > kLargestStamp) throw ProtocolError(str("no table has stamp ", head.stamp));
  stamp = std::max(stamp, head.stamp);
  tick = std::max(tick, head.tick);
  version_floor = std::max(version_floor, head.version_floor);
}

void SparseTable::Impl::load_row(const RowMeta& meta, const std::byte* floats) {
  if (meta.stamp == 0 || meta.stamp > kLargestStamp)
    throw ProtocolError(
        str("row ", meta.id, " of table \"", spec.name, "\" has stamp ", meta.stamp));
  RowMeta loaded = meta;
  std::uint64_t row = index.find(meta.id);
  if (row == HashIndex::kNone) {
    row = add(meta.id);
    candidates.erase(meta.id);
  } else {
    loaded.version = std::max(meta.version, rows.notes(row).version);
  }
  stamp = std::max(stamp, meta.stamp);
  set_notes(row, loaded);
  std::memcpy(rows.floats(row), floats, (dim + state) * sizeof(float));
}

void SparseTable::Impl::load_record(const TableRecord& record, const Filter& filter) {
  const auto count = record.head.count;
  switch (record.head.kind) {
    case TableRecordKind::kSparse: return load_head(record);
    case TableRecordKind::kRows: {
      const std::size_t row_bytes = (dim + state) * sizeof(float);
      if (record.head.floats != dim + state)
        throw ProtocolError(str("rows of ", record.head.floats, " floats for table \"", spec.name,
                                "\", whose rows have ", dim + state));
      require_items(record, sizeof(RowMeta) + row_bytes);
      const std::byte* const floats = record.body.data() + count * sizeof(RowMeta);
      for (std::size_t i = 0; i < count; ++i) {
        const auto meta = item_at<RowMeta>(record.body, i);
        if (filter.takes(meta.id)) load_row(meta, floats + i * row_bytes);
      }
      return;
    }
    case TableRecordKind::kGone: {
      require_items(record, sizeof(std::uint64_t));
      for (std::size_t i = 0; i < count; ++i) {
        const auto id = item_at<std::uint64_t>(record.body, i);
        if (!filter.takes(id)) continue;
        const std::uint64_t row = index.find(id);
        if (row != HashIndex::kNone) remove(row);
        candidates.erase(id);
      }
      return;
    }
    case TableRecordKind::kCandidates: {
      require_items(record, sizeof(CandidateRecord));
      for (std::size_t i = 0; i < count; ++i) {
        const auto candidate = item_at<CandidateRecord>(record.body, i);
        if (!filter.takes(candidate.id)) continue;
        const std::uint64_t packed = Candidate{candidate.count, candidate.tick}.packed();
        if (packed == HashIndex::kNone)
          throw ProtocolError(str("a snapshot of sparse table \"", spec.name, "\": id ",
                                  candidate.id, " has a count and a tick that nobody comes to"));
        candidates.assign(candidate.id, packed);
      }
      return;
    }
    case TableRecordKind::kDense: break;
  }
  throw ProtocolError(str("a snapshot of sparse table \"", spec.name, "\" has a record of kind ",
                          static_cast<int>(record.head.kind)));
}

void SparseTable::load_piece(std::span<const std::byte> piece,
                             bool (*wanted)(void*, std::uint64_t id), void* context) {
  Impl& t = *impl_;
  if (t.snapshot != nullptr)
    throw InvalidArgument(str("table \"", t.spec.name, "\": a load while a snapshot is taken"));
  while (!piece.empty()) t.load_record(take_record(piece), {wanted, context});
  // Of what happened before, only the outcome is known now.
  t.changes.forget(t.stamp);
  t.scan = {};
  t.gone_complete_after = std::max(t.gone_complete_after, t.stamp);
}

}  // namespace gradring::ps
