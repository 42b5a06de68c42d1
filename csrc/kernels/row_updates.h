// Steps of some rows of a matrix whose weights and fields of state are arrays of their own, where
// they lie: what GEO's workers do to their replicas. The same bits as update_row. Pure functions on
// pointers, callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/update.h"

namespace gradring::kernels {

struct RowArrays {
  float* weights;        // (rows, dim)
  float* const* fields;  // One for each of state_fields(): (rows, floats of the field).
  std::size_t rows;
  std::size_t dim;
};

// One step of each row of `slots`, which are distinct: number steps[i] of row slots[i], along
// gradients (slots, dim), which are only read. Throws InvalidArgument, before it writes, if a slot
// is beyond the rows, a step below 1, or there are not as many of both.
void update_rows(const Rule& rule, const RowArrays& arrays, std::span<const std::int64_t> slots,
                 std::span<const std::int64_t> steps, const float* gradients);

}  // namespace gradring::kernels
