#include "collectives/flat/flat_shape.h"

#include <algorithm>

namespace gradring::collectives {
namespace {

// Two operands commute, integers and logic wrap, min and max choose: no order can be seen.
bool is_order_free(const Request& request) {
  const bool is_float = request.dtype == DType::kFloat32 || request.dtype == DType::kFloat64 ||
                        is_half(request.dtype);
  return request.world_size == 2 || !is_float || request.reduce_op == ReduceOp::kMin ||
         request.reduce_op == ReduceOp::kMax;
}

}  // namespace

FlatShape::FlatShape(Rank ranks)
    : begins_(static_cast<std::size_t>(ranks) + 1), sources_(static_cast<std::size_t>(ranks)) {}

void FlatShape::set(const Request& request) {
  item_bytes_ = gradring::item_bytes(request.dtype);
  is_ring_ = request.order == Order::kRing;
  is_uniform_ = !is_ring_ || is_order_free(request);
  const bool is_avg = request.reduce_op == ReduceOp::kAvg;
  reduction_ = {request.dtype, request.reduce_op, fold_of(request.order),
                is_avg ? divisor_of(request) : 1};
  const auto ranks = request.world_size;
  if (request.op == OpKind::kBarrier) {
    std::fill(begins_.begin(), begins_.end(), 0);
  } else if (request.counts.empty()) {
    for (Rank rank = 0; rank <= ranks; ++rank)
      begins_[static_cast<std::size_t>(rank)] =
          chunk_begin(request.count, ranks, rank) * item_bytes_;
  } else {
    for (std::size_t i = 0; i < request.counts.size(); ++i)
      begins_[i + 1] = begins_[i] + request.counts[i] * item_bytes_;
  }
}

FlatPart FlatShape::part(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return {begins_[index], begins_[index + 1] - begins_[index]};
}

std::size_t FlatShape::largest_part_bytes() const {
  std::size_t largest = 0;
  for (std::size_t i = 1; i < begins_.size(); ++i)
    largest = std::max(largest, begins_[i] - begins_[i - 1]);
  return largest;
}

}  // namespace gradring::collectives
