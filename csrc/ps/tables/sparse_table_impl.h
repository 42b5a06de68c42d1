// What a sparse table is made of, for the files that implement it: sparse_table.cc (reading and
// updating rows), sparse_life.cc (how rows come and go, what changed) and sparse_snapshot.cc.
#pragma once

#include <algorithm>
#include <bitset>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "kernels/updater.h"
#include "ps/tables/change_log.h"
#include "ps/tables/hash_index.h"
#include "ps/tables/initial.h"
#include "ps/tables/records.h"
#include "ps/tables/row_store.h"
#include "ps/tables/sparse_table.h"

namespace gradring::ps {

// Stays at the end: a count that began anew would say that nothing had happened.
inline void count_one(std::uint32_t& count) {
  if (count < std::numeric_limits<std::uint32_t>::max()) [[likely]]
    ++count;
}

// Of an id that is no row yet: packed into the value of an index.
struct Candidate {
  std::uint32_t count = 0;  // Pushes so far.
  std::uint32_t tick = 0;   // Of the last one.

  std::uint64_t packed() const { return std::uint64_t{tick} << 32 | count; }
  static Candidate from(std::uint64_t packed) {
    return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
  }
};

// Whole records that wait to be read out, first come, first gone.
class RecordQueue {
 public:
  std::vector<std::byte>& back() { return bytes_; }  // To append to.
  bool is_empty() const { return begin_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - begin_; }
  // Until there are no more, or `out` has `most` bytes.
  void move_to(SnapshotBytes& out, std::size_t most);

 private:
  std::vector<std::byte> bytes_;
  std::size_t begin_ = 0;  // Of those that are still here.
};

// A snapshot that is being read out. What was there when it began and is not read out yet must be
// put aside before it changes; later changes have later stamps.
struct TableSnapshot {
  std::uint64_t since = 0;
  std::uint64_t stamp = 0;   // The table's when it began.
  std::uint64_t end = 0;     // Rows from here on came later.
  std::uint64_t cursor = 0;  // The next row to be read out.
  RecordQueue records;       // Those that come first.
  // Of the rows being read out: kept, for they would be made anew for every slice.
  std::vector<std::uint64_t> numbers;
  std::vector<RowMeta> metas;
  std::vector<RowMeta> aside;
  std::vector<float> aside_floats;
  std::size_t segment = 0;  // The next one of the candidates to be read out.
  std::bitset<HashIndex::kSegments> is_segment_done;
  RecordQueue candidates;  // Of segments put aside.

  std::uint64_t aside_bytes() const {
    return records.size() + aside.size() * sizeof(RowMeta) + aside_floats.size() * sizeof(float) +
           candidates.size();
  }
};

struct SparseTable::Impl {
  explicit Impl(TableSpec table_spec);

  // What holds for the ids of one slot, or for all others.
  struct Settings {
    kernels::Updater<float> updater;
    double lr_scale = 1;
    Entry entry;
    std::uint32_t unseen_ticks = 0;
  };
  Settings& settings_of(std::uint64_t id) {
    if (slots.empty()) return settings[0];
    const auto found = slots.find(spec.slot_shift == 0 ? id : id >> spec.slot_shift);
    return settings[found == slots.end() ? 0 : found->second];
  }
  void scale_rates(double scale);
  void set_rule(const kernels::Rule& rule, double scale);

  // One id's part of an apply.
  struct Push {
    std::uint32_t client;
    std::uint64_t step;
    Applied applied;
    bool is_finite;  // All of the block; else each row is looked at.
  };
  // Whether there was an update.
  bool update(std::uint64_t id, std::uint64_t row, float* gradient, Push& push);
  bool admits(std::uint64_t id, const Entry& entry);
  std::uint64_t create(std::uint64_t id);  // With its initial value.
  std::uint64_t add(std::uint64_t id);     // Its floats and notes are still to be written.
  void remove(std::uint64_t row);
  void note_gone(std::uint64_t id);
  float score_at(const RowNotes& notes, std::uint32_t now) const;
  // Rows at most whose memory is waited for together.
  static constexpr std::size_t kBlock = 32;
  // Fewer where rows are updated: a core can have only so many lines on their way, and what is
  // asked for beyond them is not there when its turn comes. A Zen 5 updates 5 to 9 million rows of
  // 512 bytes a second with 16 and more, 14 with 8.
  static std::size_t rows_to_update(std::size_t row_floats) {
    constexpr std::size_t kBytes = 4096;
    return std::clamp<std::size_t>(kBytes / (row_floats * sizeof(float)), 4, kBlock);
  }
  // What is wanted of a row.
  struct Needs {
    std::size_t floats = 0;
    bool notes = false;
    std::size_t rows = kBlock;  // That are waited for together.
  };
  // The rows of some ids in turn, as far as there are such: kNone and null otherwise.
  struct Found {
    std::size_t count = 0;
    std::uint64_t rows[kBlock];
    float* floats[kBlock];
  };
  void locate(std::span<const std::uint64_t> ids, std::size_t begin, const Needs& needs,
              Found& found) const;
  GRADRING_PREFETCHES void prefetch_slots(std::span<const std::uint64_t> ids, std::size_t begin,
                                          std::size_t count) const {
    const std::size_t end = std::min(begin + count, ids.size());
    for (std::size_t i = begin; i < end; ++i) index.prefetch(ids[i]);
  }
  template <typename Work>  // (begin, found)
  void for_each_block(std::span<const std::uint64_t> ids, const Needs& needs, Work&& work) const;
  template <typename IsOver>  // (row)
  std::size_t remove_where(IsOver&& is_over);
  template <typename IsOver>  // (id, tick of the last push)
  void forget_candidates(IsOver&& is_over);
  std::vector<RowChange> undated() const;
  void date(std::uint32_t first);
  void scan_for_changes(std::uint64_t since) const;

  RowMeta meta(std::uint64_t row) const;
  void set_notes(std::uint64_t row, const RowMeta& meta);

  // The snapshot's share of every change.
  void keep(std::uint64_t row) {
    if (snapshot != nullptr) put_row_aside(row);
  }
  void keep_candidate(std::uint64_t id) {
    if (snapshot != nullptr) put_candidates_aside(candidates.segment_number(id));
  }
  void reserve_aside(std::size_t count);
  void put_row_aside(std::uint64_t row);
  void put_candidates_aside(std::size_t segment);
  bool is_in_snapshot(std::uint64_t row) const;
  void append_metas(std::span<const RowMeta> metas, SnapshotBytes& out) const;
  void append_rows(std::size_t most_rows, SnapshotBytes& out);
  void append_aside(std::size_t most_rows, SnapshotBytes& out);
  void append_candidates(std::size_t most, SnapshotBytes& out);

  // What a load takes.
  struct Filter {
    bool (*wanted)(void*, std::uint64_t id);
    void* context;
    bool takes(std::uint64_t id) const { return wanted == nullptr || wanted(context, id); }
  };
  void load_record(const TableRecord& record, const Filter& filter);
  void load_head(const TableRecord& record);
  void load_row(const RowMeta& meta, const std::byte* floats);

  TableSpec spec;
  Draws draws;
  std::size_t dim;
  std::size_t state;  // Floats beside the weights.
  RowStore rows;
  HashIndex index;       // id -> row.
  HashIndex candidates;  // id -> Candidate.
  // id -> stamp of its removal, for ids that are no rows since: the newer ones, and those before.
  HashIndex gone;
  HashIndex gone_before;
  std::uint64_t gone_begun = 0;           // The newer ones are of this stamp and later.
  std::uint64_t gone_complete_after = 0;  // Both together have every removal after this stamp.
  ChangeLog changes;
  std::uint64_t stamp = 0;
  std::uint32_t tick = 0;
  std::uint32_t version_floor = 0;   // The highest version of a row that is gone.
  std::vector<Settings> settings;    // [0]: for ids of no slot.
  bool has_entry = false;            // Some ids are counted before they are rows.
  std::vector<std::size_t> skipped;  // Of the last push.
  std::unordered_map<std::uint64_t, std::size_t> slots;
  double scale = 1;
  std::unique_ptr<TableSnapshot> snapshot;

  // What changed after `since` up to `through`, oldest first, when the ring no longer knew.
  struct Scan {
    std::uint64_t since = 0;
    std::uint64_t through = 0;
    std::vector<RowChange> found;
  };
  mutable Scan scan;
};

}  // namespace gradring::ps
