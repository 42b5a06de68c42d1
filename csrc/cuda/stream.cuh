// What the streaming kernels have in common: 16-byte accesses, and how the elements of a range are
// given to the threads of a block. A kernel is a body (what is loaded for a run of elements, and
// what is done with it once all loads of a batch are on their way) over ranges: pieces of tensors,
// or stripes of one long vector.
#pragma once

#include "cuda/launch.h"
#include "kernels/half.h"

namespace gradring::cuda {

using kernels::BFloat16;
using kernels::Float16;
using kernels::Float32;
using kernels::Float64;

inline constexpr unsigned kThreads = 256;  // Of a block.
inline constexpr unsigned kBlocks = 3;     // At least at once on a multiprocessor: 80 registers.
inline constexpr unsigned kWidest = 16;    // Bytes of an access.
inline constexpr unsigned kInFlight = 64;  // Bytes that a thread has on their way, where it can.

template <unsigned kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<1> {
  using Type = unsigned char;
};

// Neighbours in memory, and the word that one access moves them as. Loaded words are kept as they
// are until they are used: halves taken apart need twice the registers.
template <typename T, unsigned kCount>
struct Run {
  T at[kCount];
};
template <typename T, unsigned kCount>
using Word = typename WordOf<sizeof(Run<T, kCount>)>::Type;

// Of memory that nothing writes during the launch.
template <unsigned kCount, typename T>
__device__ __forceinline__ Word<T, kCount> load_constant(const T* from) {
  return __ldg(reinterpret_cast<const Word<T, kCount>*>(from));
}
// Of memory that the same thread may write afterwards.
template <unsigned kCount, typename T>
__device__ __forceinline__ Word<T, kCount> load_once(const T* from) {
  return __ldcs(reinterpret_cast<const Word<T, kCount>*>(from));
}
template <typename T, unsigned kCount>
__device__ __forceinline__ Run<T, kCount> run_of(const Word<T, kCount>& word) {
  return kernels::bits_as<Run<T, kCount>>(word);
}
template <unsigned kCount, typename T>
__device__ __forceinline__ void store(T* to, const Run<T, kCount>& run) {
  __stwb(reinterpret_cast<Word<T, kCount>*>(to), kernels::bits_as<Word<T, kCount>>(run));
}

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
