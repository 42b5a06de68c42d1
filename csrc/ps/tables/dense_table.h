// One shard's part of a dense table: a run of floats with its rule's state. Owned by its shard's
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps/tables/partition.h"
#include "ps/tables/snapshot_bytes.h"
#include "ps/tables/spec.h"

namespace gradring::ps {

class DenseTable {
 public:
  // Weights start at the initializer, counted from the table's first float: the same values for
  // any number of shards.
  DenseTable(TableSpec spec, std::uint32_t shard, std::uint32_t shards);

  const TableSpec& spec() const { return spec_; }
  DenseRange range() const { return range_; }
  std::size_t count() const { return weights_.size(); }  // On this shard.
  std::span<const float> weights() const { return weights_; }
  std::span<const float> state() const { return state_; }
  std::uint64_t bytes() const { return (weights_.size() + state_.size()) * sizeof(float); }
  std::uint64_t stamp() const { return stamp_; }
  std::uint64_t steps() const { return steps_; }
  std::uint64_t version() const { return steps_; }

  // One step. `gradient` (count()) is scratch. False: it was not finite and nothing changed.
  bool apply(float* gradient);
  // For the steps to come; of the same state.
  void set_rule(const kernels::Rule& rule) { spec_.rule = rule; }
  // Replaces weights, and state and steps where given: a rule without state has steps all the same,
  // and 0 are none.
  void write(std::span<const float> weights, std::span<const float> state, std::uint64_t steps);

  // As SparseTable's. The snapshot is a copy made at once.
  void begin_snapshot(std::uint64_t since);
  bool next_snapshot_piece(std::size_t most_bytes, SnapshotBytes& out);
  void end_snapshot();
  // Pieces may come from tables with other ranges; what is not ours is left out. Those of one table
  // follow each other: the last one's count of steps holds, and of several tables the largest.
  void load_piece(std::span<const std::byte> piece);
  // The pieces of another table follow.
  void begin_next_load() { least_steps_ = steps_; }

 private:
  TableSpec spec_;
  DenseRange range_;
  std::vector<float> weights_;
  std::vector<float> state_;  // Whole fields one after the other, each as long as weights_.
  std::uint64_t steps_ = 0;
  std::uint64_t least_steps_ = 0;  // Of the tables that were loaded.
  std::uint64_t stamp_ = 0;
  std::vector<std::byte> snapshot_;  // What is still to be read out.
  std::size_t snapshot_at_ = 0;
};

}  // namespace gradring::ps
