// One shard's part of a sparse table: id -> row of floats with its rule's state beside it. Open
// addressing over one growing slab, keys prefetched in blocks. Owned by its shard's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ps/tables/snapshot_bytes.h"
#include "ps/tables/spec.h"

namespace gradring::ps {

// What is known of a row besides its floats.
struct RowMeta {
  std::uint64_t id = 0;
  std::uint64_t stamp = 0;    // SparseTable::stamp() after its last change.
  std::uint32_t version = 0;  // Updates applied; never goes back.
  std::uint32_t steps = 0;    // Of the rule, where it counts per row.
  std::uint32_t writer = 0;   // Client of the last change.
  std::uint32_t tick = 0;     // Of the last push.
  float score = 0;            // As of that push: it decays from there.
  std::uint32_t reserved = 0;
};

// What a push did.
struct Applied {
  std::uint64_t rows = 0;
  std::uint64_t refused = 0;       // Not finite: the row stays as it was.
  std::uint64_t not_admitted = 0;  // Counted only.
  // Where these are among the ids, ascending; valid until the next push.
  std::span<const std::size_t> skipped;
};

class SparseTable {
 public:
  explicit SparseTable(TableSpec spec);
  ~SparseTable();
  SparseTable(const SparseTable&) = delete;
  SparseTable& operator=(const SparseTable&) = delete;

  const TableSpec& spec() const;
  std::size_t size() const;        // Rows.
  std::size_t row_floats() const;  // dim + state.
  std::uint64_t stamp() const;     // Grows by one with every apply, write, tick or shrink.
  std::uint64_t bytes() const;     // Memory taken.

  // Reads `ids.size()` rows of dim floats into `out`; ids that are no rows read as their initial
  // value. Changes nothing.
  void gather(std::span<const std::uint64_t> ids, float* out) const;
  void versions(std::span<const std::uint64_t> ids, std::uint32_t* out) const;  // 0: no row.

  // So that apply() or write() of so many rows, `fresh` of them ids that are no rows, finds memory
  // whatever there is by then (HashIndex::reserve says where it may not). Throws std::bad_alloc:
  // the table's rows are as they were.
  void reserve(std::size_t rows, std::size_t fresh);
  std::size_t count_fresh(std::span<const std::uint64_t> ids) const;
  // One update of each row. `ids` are distinct (one that is not gets two updates); `gradients`
  // (ids.size() x dim) is scratch. `step` is the table's (kSparseAdam); `scale` multiplies the
  // learning rate.
  Applied apply(std::span<const std::uint64_t> ids, float* gradients, std::uint32_t client,
                std::uint64_t step, double scale = 1);

  // For the updates to come; of the same kind and state.
  void set_rule(const kernels::Rule& rule);

  // Rows changed after `since` by others than `client` (every row if client is ~0u), at most
  // `most`, oldest change first; but what one call changed is never cut in two. Returns the stamp
  // to ask with next time; `more`: there are others.
  struct Changed {
    std::vector<std::uint64_t> ids;
    std::uint64_t since = 0;
    bool more = false;
  };
  Changed changed(std::uint64_t since, std::uint32_t client, std::size_t most) const;

  // Whole rows: meta and row_floats() floats each, in slab order from `cursor`; the next cursor.
  struct Rows {
    std::vector<RowMeta> metas;
    std::vector<float> floats;
    std::uint64_t cursor = 0;
    bool more = false;
  };
  Rows read(std::uint64_t cursor, std::size_t most) const;
  bool read_row(std::uint64_t id, RowMeta& meta, float* floats) const;
  // Makes or replaces whole rows, admission or not. Versions never go back: the row's becomes the
  // larger of its own + 1 and the given one.
  void write(std::span<const RowMeta> metas, const float* floats, std::uint32_t client);

  // Time passes: scores decay, what was not pushed for more than unseen_ticks goes. Returns how
  // many rows. A tick that is not above the present one changes nothing but the stamp. What was
  // pushed before the first one counts as of the tick before that.
  std::size_t set_tick(std::uint32_t tick);
  void begin_at(std::uint32_t tick);  // A table that is new where others have come to this tick.
  std::uint32_t tick() const;
  // Drops the rows whose score is below `least_score` or that were not pushed for more than
  // `unseen_ticks` (0: not asked). Returns how many.
  std::size_t shrink(float least_score, std::uint32_t unseen_ticks);

  // A snapshot is the table as it is now, read out in pieces while updates go on: a row about to
  // change is copied aside first. One at a time. `since` 0: everything; else only what changed
  // after that stamp, with the ids that went; InvalidArgument if those are not known any more.
  // Admission counts are always in it.
  void begin_snapshot(std::uint64_t since);
  // Appends records to `out`, at most about `most_bytes`; false once there is no more.
  bool next_snapshot_piece(std::size_t most_bytes, SnapshotBytes& out);
  void end_snapshot();  // Also to give up.
  // Takes records that next_snapshot_piece made, in any number of calls with whole pieces; rows
  // for which `wanted` (may be null) says no are left out. Throws ProtocolError on nonsense; what
  // came before it stays.
  void load_piece(std::span<const std::byte> piece, bool (*wanted)(void*, std::uint64_t id),
                  void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradring::ps
