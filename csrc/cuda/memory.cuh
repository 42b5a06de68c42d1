// How kernels reach memory: neighbours with one access of up to 16 bytes; and at any alignment:
// four floats with one access where that can be, else one by one, and words of byte strings. What
// lies behind the end of such a vector is read as zeros and not written.
#pragma once

#include "cuda/launch.h"
#include "kernels/portable.h"

namespace gradring::cuda {

constexpr unsigned kWarpLanes = 32;
constexpr unsigned kWidest = 16;  // Bytes of an access.

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

struct Four {
  float at[4];
};

__device__ __forceinline__ bool is_aligned(const void* pointer, unsigned bytes) {
  return (reinterpret_cast<std::uintptr_t>(pointer) & (bytes - 1)) == 0;
}

// A vector of floats of which four at a time are taken, from a multiple of four on.
template <typename Float>
struct Fours {
  Float* data;
  std::uint64_t count;
  bool is_wide;  // On 16 bytes.

  __device__ __forceinline__ Fours(Float* vector, std::uint64_t length)
      : data(vector), count(length), is_wide(is_aligned(vector, kWidest)) {}

  __device__ __forceinline__ bool is_whole(std::uint64_t at) const {
    return is_wide && at + 4 <= count;
  }

  // Of memory that nothing writes while the kernel runs.
  __device__ __forceinline__ Four constant(std::uint64_t at) const {
    if (is_whole(at)) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(data + at));
      return {{four.x, four.y, four.z, four.w}};
    }
    Four four;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) four.at[i] = at + i < count ? __ldg(data + at + i) : 0.0F;
    return four;
  }

  __device__ __forceinline__ Four load(std::uint64_t at) const {
    if (is_whole(at)) {
      const float4 four = *reinterpret_cast<const float4*>(data + at);
      return {{four.x, four.y, four.z, four.w}};
    }
    Four four;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) four.at[i] = at + i < count ? data[at + i] : 0.0F;
    return four;
  }

  __device__ __forceinline__ void store(std::uint64_t at, const Four& four) const {
    if (is_whole(at)) {
      *reinterpret_cast<float4*>(data + at) =
          make_float4(four.at[0], four.at[1], four.at[2], four.at[3]);
      return;
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
      if (at + i < count) data[at + i] = four.at[i];
  }
};

// Little-endian words of a byte string; `is_wide` if they lie on 4 bytes. `bytes` of a word are
// there: the others are 0, or not written.
__device__ __forceinline__ std::uint32_t load_word(const std::uint8_t* at, bool is_wide,
                                                   unsigned bytes = 4) {
  if (is_wide && bytes == 4) return __ldg(reinterpret_cast<const std::uint32_t*>(at));
  std::uint32_t word = 0;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    if (i < bytes) word |= static_cast<std::uint32_t>(__ldg(at + i)) << (8 * i);
  return word;
}

__device__ __forceinline__ void store_word(std::uint8_t* at, bool is_wide, std::uint32_t word,
                                           unsigned bytes = 4) {
  if (is_wide && bytes == 4) {
    *reinterpret_cast<std::uint32_t*>(at) = word;
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < 4; ++i)
    if (i < bytes) at[i] = static_cast<std::uint8_t>(word >> (8 * i));
}

// How many of the four places from `at` on lie before the end.
__device__ __forceinline__ unsigned part_of_four(std::uint64_t at, std::uint64_t count) {
  if (at >= count) return 0;
  return count - at < 4 ? static_cast<unsigned>(count - at) : 4;
}

}  // namespace gradring::cuda
