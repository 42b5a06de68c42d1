// The slow, obvious answer to what kernels::reduce computes, one element at a time and from the
// contract's words. Shares no arithmetic with csrc/kernels. Used by tests and benches only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/reduce.h"

namespace gradring::reference {

using Buffer = std::vector<std::byte>;

// All sources hold the same number of elements. Floats: a NaN is always the positive quiet one.
Buffer reduce(const std::vector<Buffer>& sources, const kernels::Reduction& reduction);

// The float16 or bfloat16 (as bits) nearest to `value`, ties to even.
std::uint16_t nearest_half(DType dtype, double value);
double value_of_half(DType dtype, std::uint16_t bits);

}  // namespace gradring::reference
