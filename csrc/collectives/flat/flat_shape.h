// FlatShape: what one request means in bytes: where each rank's part of the vector lies, and how
// operands meet. Computed anew for each operation without taking memory, since short operations
// last a fraction of a microsecond (parts.h is the same for planners, which are remembered).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/plan/plan.h"
#include "kernels/reduce.h"

namespace gradring::collectives {

// Bytes [begin, begin + bytes) of the vector.
struct FlatPart {
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

class FlatShape {
 public:
  explicit FlatShape(Rank ranks);

  void set(const Request& request);

  std::size_t item_bytes() const { return item_bytes_; }
  std::size_t bytes() const { return begins_.back(); }
  FlatPart part(Rank rank) const;
  std::size_t largest_part_bytes() const;

  // Whether all parts add their operands in the same way, so that the vector can be one.
  bool is_uniform() const { return is_uniform_; }
  // Folds the operands of `owner`'s part: operand(rank) is where that rank's bytes are.
  template <typename Operand>
  void reduce(std::byte* dst, std::size_t bytes, Rank owner, const Operand& operand);

 private:
  std::size_t item_bytes_ = 1;
  bool is_uniform_ = true;
  bool is_ring_ = true;
  kernels::Reduction reduction_;
  std::vector<std::size_t> begins_;  // In bytes; one more than there are parts.
  std::vector<const std::byte*> sources_;
};

template <typename Operand>
void FlatShape::reduce(std::byte* dst, std::size_t bytes, Rank owner, const Operand& operand) {
  const auto ranks = static_cast<Rank>(sources_.size());
  Rank next = is_ring_ ? owner + 1 : 0;
  for (const std::byte*& source : sources_) {
    if (next >= ranks) next = 0;
    source = operand(next++);
  }
  kernels::reduce(dst, sources_, bytes / item_bytes_, reduction_);
}

}  // namespace gradring::collectives
