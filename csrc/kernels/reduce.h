// The arithmetic of reductions on plain pointers. One entry point serves every algorithm and
// transport, so that the same operands in the same order give the same bits wherever they meet.
// Knows nothing of ranks. Callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"

namespace gradring::kernels {

// How k operands become one. Both are fixed expressions, so a result never depends on how a buffer
// was cut up.
//   kLeft: ((s0 + s1) + s2) + ...
//   kTree: with p = the largest power of two <= k, leaf i = s_i + s_{i+p} where i + p < k, else
//   s_i; then neighbours are
//          added pairwise, level by level: ((l0 + l1) + (l2 + l3)) + ... This is what recursive
//          doubling computes.
enum class Fold : std::uint8_t { kLeft, kTree };

struct Reduction {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // kAvg behaves as kSum here; dividing is said by `divisor`.
  Fold fold = Fold::kLeft;
  std::uint32_t divisor = 1;  // The folded value is divided by it: floats correctly rounded,
                              // integers truncated towards zero.
};

// dst[i] = fold(op, sources[0][i], ..., sources[k-1][i]) / divisor, for i < count.
// float16 and bfloat16 are widened to float32, folded and divided there, and rounded once (to
// nearest even). min and max pass a NaN on, as NumPy's minimum and maximum do, and -0 < +0: the
// order of operands does not matter to them. Integers wrap. bool: sum and max are "or", prod and
// min are "and"; any byte but 0 is true, true is written as 1. A NaN is always written as the one
// positive quiet NaN without payload (unless k == 1 and divisor == 1: a copy), so the bits depend
// neither on the instruction set nor on an element's place in the buffer. Rounding is to nearest
// even, and denormals are kept, as long as the calling thread has not changed its floating-point
// mode. Throws InternalError when is_defined(dtype, op) is false, there is no source, or divisor is
// not in [1, 2^24]. `dst` may be one of the sources, exactly; it must not overlap them in any other
// way. k >= 1; k == 1 copies (and divides). No alignment beyond the element's own is needed.
void reduce(std::byte* dst, std::span<const std::byte* const> sources, std::size_t count,
            const Reduction& reduction);

// A copy out of place; `bytes` may be 0.
using Copy = void(std::byte* dst, const std::byte* src, std::size_t bytes);

// What copies pieces of a result of `bytes` that each of `ranks` ranks of this host writes at the
// same time: past the caches when the last of them cannot hold the results.
Copy* copy_for(std::size_t bytes, std::size_t ranks);
// What always does, and what never does.
Copy* copy_past_caches();
Copy* copy_into_caches();
// For what another core has written, and will write, over and over: without an instruction of the
// processor's own (decision 22), which is slower there where it is fast elsewhere.
Copy* copy_between_caches();
// The same as copy_for out of memory that other ranks have just written.
Copy* copy_from_core_for(std::size_t bytes, std::size_t ranks);

// The same for a result that is alone, and copied at once.
void copy(std::byte* dst, const std::byte* src, std::size_t bytes);

}  // namespace gradring::kernels
