// The rows of a sparse table by number: floats (weights, then state), and what changes with them in
// an array of its own, so that reading rows does not touch it. Numbers of removed rows are used
// again. Owned by the table's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps/tables/pages.h"

namespace gradring::ps {

// RowMeta without the id: half a cache line.
struct RowNotes {
  std::uint64_t stamp = 0;  // 0: nobody has this row.
  std::uint32_t version = 0;
  std::uint32_t steps = 0;
  std::uint32_t writer = 0;
  std::uint32_t tick = 0;
  float score = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RowNotes) == 32);

class RowStore {
 public:
  explicit RowStore(std::size_t row_floats);

  // A row for `id`; its floats and notes are whatever they were. Its stamp must be set before
  // anything else is done.
  std::uint64_t add(std::uint64_t id);
  void remove(std::uint64_t row);
  // So many that add() finds memory for, whatever there is by then. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    if (end_ + count > room_ + free_.size()) [[unlikely]]
      take_blocks(end_ + count - free_.size());
  }

  std::uint64_t end() const { return end_; }  // Above every row number.
  float* floats(std::uint64_t row) const { return reinterpret_cast<float*>(floats_.at(row)); }
  RowNotes& notes(std::uint64_t row) const { return *reinterpret_cast<RowNotes*>(notes_.at(row)); }
  std::uint64_t& id(std::uint64_t row) const {
    return *reinterpret_cast<std::uint64_t*>(ids_.at(row));
  }
  bool is_used(std::uint64_t row) const { return notes(row).stamp != 0; }
  std::size_t bytes() const;

 private:
  void take_blocks(std::uint64_t end);

  BlockArray floats_;
  BlockArray notes_;
  BlockArray ids_;
  std::vector<std::uint64_t> free_;
  std::uint64_t end_ = 0;
  std::uint64_t room_ = 0;  // Rows that there are blocks for, by the last take_blocks().
};

}  // namespace gradring::ps
