// Kernels of the int8 codec (kernels/codec.h). One warp has a block of 256 elements: a lane holds
// four of its first half and four of its second, so that floats move 16 bytes at a time and codes
// four, each warp's in one stretch. A block is read once and its codes are made on the chip.
#pragma once

#include "cuda/memory.cuh"
#include "gpu/codec_calls.h"
#include "kernels/quantise.h"

namespace gradring::cuda {

constexpr unsigned kQuantiseThreads = 256;
constexpr unsigned kBlocksTogether = kQuantiseThreads / kWarpLanes;
constexpr unsigned kSourcesTogether = 4;  // Whose loads are on their way at once.

// What a lane has of a block.
struct Share {
  Four half[2];
};

// Which block this warp has, and where its lane's parts are.
struct BlockPlace {
  std::uint64_t number;
  std::uint64_t count;
  unsigned lane;

  __device__ __forceinline__ explicit BlockPlace(std::uint64_t elements)
      : number(std::uint64_t{blockIdx.x} * kBlocksTogether + threadIdx.x / kWarpLanes),
        count(elements),
        lane(threadIdx.x % kWarpLanes) {}

  __device__ __forceinline__ bool is_there() const {
    return number * kernels::kQuantiseBlock < count;
  }
  __device__ __forceinline__ std::uint64_t blocks() const {
    return (count + kernels::kQuantiseBlock - 1) / kernels::kQuantiseBlock;
  }
  __device__ __forceinline__ std::uint64_t at(unsigned half) const {
    return number * kernels::kQuantiseBlock + half * (kernels::kQuantiseBlock / 2) + lane * 4;
  }
};

// Encodes v and leaves the rest in `residual`, if there is one.
__device__ __forceinline__ void write_block(const BlockPlace& place, const Share& v,
                                            float* residual, void* out, std::uint32_t* nonfinite) {
  std::uint32_t largest = 0;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t magnitude =
          kernels::bits_of(v.half[half].at[i]) & kernels::kMagnitudeBits;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  const float scale = kernels::scale_for(largest);
  const bool has_codes = scale > 0;
  const bool is_lost = largest >= kernels::kInfinityBits;
  std::uint8_t* const bytes = static_cast<std::uint8_t*>(out);
  const bool is_wide = is_aligned(out, 4);
  std::uint8_t* const codes = bytes + place.blocks() * sizeof(float);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint64_t at = place.at(half);
    std::uint32_t word = 0;
    Four left;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const float value = v.half[half].at[i];
      const std::int32_t code = has_codes ? kernels::code_of(value, scale) : 0;
      word |= (static_cast<std::uint32_t>(code) & 0xFFu) << (8 * i);
      left.at[i] = is_lost ? 0.0F : value - kernels::decoded(code, scale);
    }
    store_word(codes + at, is_wide, word, part_of_four(at, place.count));
    if (residual != nullptr) Fours<float>(residual, place.count).store(at, left);
  }
  if (place.lane != 0) return;
  store_word(bytes + place.number * sizeof(float), is_wide, kernels::bits_of(scale));
  if (is_lost && nonfinite != nullptr) *nonfinite = 1;
}

__device__ __forceinline__ void add_residual(const BlockPlace& place, const float* residual,
                                             Share& v) {
  const Fours<const float> left(residual, place.count);
  const Four first = left.load(place.at(0));
  const Four second = left.load(place.at(1));
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    v.half[0].at[i] += first.at[i];
    v.half[1].at[i] += second.at[i];
  }
}

__global__ void __launch_bounds__(kQuantiseThreads) quantise_blocks(const gradring_quantise call) {
  const BlockPlace place(call.count);
  if (!place.is_there()) return;
  const Fours<const float> values(call.values, call.count);
  Share v = {{values.constant(place.at(0)), values.constant(place.at(1))}};
  if (call.residual != nullptr) add_residual(place, call.residual, v);
  write_block(place, v, call.residual, call.out, call.nonfinite);
}

// A lane's codes of one source's block.
struct Codes {
  std::uint32_t half[2];
  float scale;
};

__device__ __forceinline__ Codes load_codes(const void* source, const BlockPlace& place) {
  const std::uint8_t* const bytes = static_cast<const std::uint8_t*>(source);
  const std::uint8_t* const codes = bytes + place.blocks() * sizeof(float);
  const bool is_wide = is_aligned(source, 4);
  Codes loaded;
  loaded.scale = kernels::float_of(load_word(bytes + place.number * sizeof(float), is_wide));
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const std::uint64_t at = place.at(half);
    loaded.half[half] = load_word(codes + at, is_wide, part_of_four(at, place.count));
  }
  return loaded;
}

__device__ __forceinline__ void add_codes(const Codes& codes, Share& sum) {
  const float scale = kernels::trusted_scale(codes.scale);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const auto code = static_cast<std::int8_t>(codes.half[half] >> (8 * i));
      sum.half[half].at[i] += kernels::decoded(code, scale);
    }
  }
}

// What the sum starts as. -0 is the number that adding to any other changes nothing.
__device__ __forceinline__ Share sum_start(int start, const float* dst, const BlockPlace& place) {
  if (start == GRADRING_SUM_FROM_DST) {
    const Fours<const float> from(dst, place.count);
    return {{from.load(place.at(0)), from.load(place.at(1))}};
  }
  const float zero = start == GRADRING_SUM_FROM_ZERO ? 0.0F : -0.0F;
  return {{{{zero, zero, zero, zero}}, {{zero, zero, zero, zero}}}};
}

// From left to right, four sources' loads before the first of their additions.
__device__ __forceinline__ Share sum_of(const gradring_codec_sources& sources, Share sum,
                                        const BlockPlace& place) {
  Share plain = {};
  if (sources.plain >= 0) {
    const Fours<const float> from(static_cast<const float*>(sources.at[sources.plain]),
                                  place.count);
    plain = {{from.load(place.at(0)), from.load(place.at(1))}};
  }
  for (int first = 0; first < sources.count; first += static_cast<int>(kSourcesTogether)) {
    Codes codes[kSourcesTogether] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(kSourcesTogether); ++i) {
      if (first + i < sources.count && first + i != sources.plain)
        codes[i] = load_codes(sources.at[first + i], place);
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(kSourcesTogether); ++i) {
      if (first + i >= sources.count) continue;
      if (first + i != sources.plain) {
        add_codes(codes[i], sum);
        continue;
      }
#pragma unroll
      for (unsigned e = 0; e < 8; ++e) sum.half[e / 4].at[e % 4] += plain.half[e / 4].at[e % 4];
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kQuantiseThreads)
    dequantise_blocks(const __grid_constant__ gradring_dequantise call) {
  const BlockPlace place(call.count);
  if (!place.is_there()) return;
  Share sum = sum_of(call.sources, sum_start(call.start, call.dst, place), place);
  const float divisor = call.divisor_at == nullptr ? call.divisor : __ldg(call.divisor_at);
  const bool divides = divisor != 0 && divisor != 1;
  const Fours<float> dst(call.dst, call.count);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      float& element = sum.half[half].at[i];
      element = kernels::with_one_nan(divides ? element / divisor : element);
    }
    dst.store(place.at(half), sum.half[half]);
  }
}

__global__ void __launch_bounds__(kQuantiseThreads)
    requantise_blocks(const __grid_constant__ gradring_requantise call) {
  const BlockPlace place(call.count);
  if (!place.is_there()) return;
  Share v = sum_of(call.sources, sum_start(call.start, nullptr, place), place);
  if (call.residual != nullptr) add_residual(place, call.residual, v);
  write_block(place, v, call.residual, call.out, call.nonfinite);
}

}  // namespace gradring::cuda
