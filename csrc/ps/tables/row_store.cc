#include "ps/tables/row_store.h"

#include <algorithm>

namespace gradring::ps {
namespace {

// Long rows begin at multiples of 16 bytes, for vector loads; short ones lie as close as they can.
std::size_t row_bytes(std::size_t row_floats) {
  const std::size_t padded = row_floats < 16 ? row_floats : (row_floats + 3) / 4 * 4;
  return padded * sizeof(float);
}

}  // namespace

RowStore::RowStore(std::size_t row_floats)
    : floats_(row_bytes(row_floats)), notes_(sizeof(RowNotes)), ids_(sizeof(std::uint64_t)) {}

std::uint64_t RowStore::add(std::uint64_t id) {
  std::uint64_t row = end_;
  if (!free_.empty()) {
    row = free_.back();
    free_.pop_back();
  } else {
    floats_.grow_to(end_ + 1);
    notes_.grow_to(end_ + 1);
    ids_.grow_to(end_ + 1);
    ++end_;
  }
  this->id(row) = id;
  return row;
}

void RowStore::take_blocks(std::uint64_t end) {
  for (BlockArray* const array : {&floats_, &notes_, &ids_}) array->reserve(end);
  room_ = std::min({floats_.room(), notes_.room(), ids_.room()});
}

void RowStore::remove(std::uint64_t row) {
  free_.push_back(row);
  notes(row) = {};
}

std::size_t RowStore::bytes() const {
  return floats_.bytes() + notes_.bytes() + ids_.bytes() + free_.capacity() * sizeof(free_[0]);
}

}  // namespace gradring::ps
