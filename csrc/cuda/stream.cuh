// What the streaming kernels have in common: how the elements of a range are given to the threads
// of a block, 16 bytes at a time. A kernel is a body (what is loaded for a run of elements, and
// what is done with it once all loads of a batch are on their way) over ranges: pieces of tensors,
// or stripes of one long vector.
#pragma once

#include "cuda/memory.cuh"
#include "kernels/half.h"

namespace gradring::cuda {

using kernels::BFloat16;
using kernels::Float16;
using kernels::Float32;
using kernels::Float64;

inline constexpr unsigned kThreads = 256;  // Of a block.
inline constexpr unsigned kBlocks = 3;     // At least at once on a multiprocessor: 80 registers.
inline constexpr unsigned kInFlight = 64;  // Bytes that a thread has on their way, where it can.

__device__ __forceinline__ bool lies_on_widest(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kWidest == 0;
}

__device__ __forceinline__ float scale_of(const float* scale) {
  return scale == nullptr ? 1.0F : __ldg(scale);
}
__device__ __forceinline__ bool is_skipped(const std::uint32_t* skip) {
  return skip != nullptr && *static_cast<const volatile std::uint32_t*>(skip) != 0;
}

// Elements of a run such that the widest of the vectors is moved by 16 bytes at a time.
template <typename... Items>
constexpr unsigned run_length() {
  unsigned widest = 1;
  ((widest = sizeof(Items) > widest ? sizeof(Items) : widest), ...);
  return kWidest / widest;
}

// Runs of a thread in one batch, when each run moves `bytes` bytes from memory.
constexpr unsigned runs_at_once(unsigned bytes) {
  const unsigned runs = kInFlight / bytes;
  return runs < 1 ? 1 : runs > 8 ? 8 : runs;
}

// kRuns runs of kCount elements for each thread, from element `begin` on: all loads, then the rest.
// A body has  template <unsigned kCount> struct Loaded,
//             load<kCount>(element) -> Loaded<kCount>,  finish<kCount>(Loaded<kCount>, element).
template <unsigned kCount, unsigned kRuns, bool kIsWhole, typename Body, typename Element>
__device__ __forceinline__ void batch(Body& body, Element begin, Element end) {
  typename Body::template Loaded<kCount> loaded[kRuns];
#pragma unroll
  for (unsigned r = 0; r < kRuns; ++r) {
    const Element at = begin + (r * kThreads + threadIdx.x) * kCount;
    if (kIsWhole || at < end) loaded[r] = body.template load<kCount>(at);
  }
#pragma unroll
  for (unsigned r = 0; r < kRuns; ++r) {
    const Element at = begin + (r * kThreads + threadIdx.x) * kCount;
    if (kIsWhole || at < end) body.template finish<kCount>(loaded[r], at);
  }
}

// Elements [begin, end) by the threads of this block. `is_wide`: all vectors lie on 16 bytes, at
// element 0. What is no whole run is moved one by one, neighbours by neighbouring threads.
template <unsigned kCount, unsigned kRuns, typename Body, typename Element>
__device__ __forceinline__ void sweep(Body& body, Element begin, Element end, bool is_wide) {
  constexpr unsigned kBatch = kThreads * kCount * kRuns;
  constexpr unsigned kSingles = kRuns < 4 ? kRuns : 4;
  if (is_wide) {
#pragma unroll 1  // A batch is enough at once.
    for (; end - begin >= kBatch; begin += kBatch) batch<kCount, kRuns, true>(body, begin, end);
    const Element runs_end = end - (end - begin) % kCount;
    if (begin < runs_end) batch<kCount, kRuns, false>(body, begin, runs_end);
    begin = runs_end;
  }
#pragma unroll 1
  for (; begin < end; begin += kThreads * kSingles) {
    if (end - begin > kThreads)
      batch<1, kSingles, false>(body, begin, end);
    else
      batch<1, 1, false>(body, begin, end);
  }
}

// One long vector: every block takes a stripe, the next one gridDim.x stripes later.
inline constexpr std::uint64_t kStripe = 8192;

template <unsigned kCount, unsigned kRuns, typename Body>
__device__ __forceinline__ void sweep_stripes(Body& body, std::uint64_t count, bool is_wide) {
  for (std::uint64_t begin = blockIdx.x * kStripe; begin < count; begin += gridDim.x * kStripe) {
    const std::uint64_t end = count - begin < kStripe ? count : begin + kStripe;
    sweep<kCount, kRuns>(body, begin, end, is_wide);
  }
}

// More blocks than run at once: the device evens them out.
inline unsigned blocks_for(int device, std::uint64_t pieces) {
  return resident_blocks(device, 32, pieces);
}
inline unsigned blocks_for_vector(int device, std::uint64_t count) {
  return blocks_for(device, (count + kStripe - 1) / kStripe);
}

}  // namespace gradring::cuda
