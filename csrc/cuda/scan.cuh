// Running sums: over the lanes of a warp, over the threads of a block, over the tiles of a grid in
// one pass. For the last, tiles take numbers in the order in which their blocks begin, and each
// tile publishes first its own sum, then the sum up to its end; a tile adds up what the ones before
// it have published (the decoupled look-back of Merrill and Garland 2016). It waits for nothing but
// blocks that have begun before it.
#pragma once

#include "cuda/memory.cuh"

namespace gradring::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ unsigned lane_index() {
  return threadIdx.x % kWarpLanes;
}
__device__ __forceinline__ unsigned warp_index() {
  return threadIdx.x / kWarpLanes;
}
__device__ __forceinline__ std::uint32_t lanes_before() {
  return (1u << lane_index()) - 1;
}

// The sum over this lane and those before it. Several small numbers may share a word.
template <typename Word>
__device__ __forceinline__ Word warp_running_sum(Word value) {
#pragma unroll
  for (unsigned apart = 1; apart < kWarpLanes; apart *= 2) {
    const Word other = __shfl_up_sync(kAllLanes, value, apart);
    if (lane_index() >= apart) value += other;
  }
  return value;
}

// Two counts below 2^30 and how far they reach.
struct TileSums {
  static constexpr std::uint64_t kOwn = std::uint64_t{1} << 62;   // Of the tile.
  static constexpr std::uint64_t kUpTo = std::uint64_t{2} << 62;  // Of all up to its end.
  static constexpr std::uint64_t kCounts = kOwn - 1;
  static constexpr unsigned kSecond = 31;  // Where the second count begins.

  static __device__ __forceinline__ std::uint64_t packed(std::uint32_t first,
                                                         std::uint32_t second) {
    return std::uint64_t{second} << kSecond | first;
  }
  static __device__ __forceinline__ std::uint32_t first(std::uint64_t counts) {
    return static_cast<std::uint32_t>(counts & 0x7FFFFFFFu);
  }
  static __device__ __forceinline__ std::uint32_t second(std::uint64_t counts) {
    return static_cast<std::uint32_t>(counts >> kSecond & 0x7FFFFFFFu);
  }
};

__device__ __forceinline__ std::uint64_t read_published(const std::uint64_t* word) {
  return *static_cast<const volatile std::uint64_t*>(word);
}
__device__ __forceinline__ void publish(std::uint64_t* word, std::uint64_t value) {
  *static_cast<volatile std::uint64_t*>(word) = value;
}

// Called by the first warp: publishes this tile's counts and returns the sum over all tiles before
// it. 32 of them are looked at together. `tiles` was zeros when the grid began.
__device__ __forceinline__ std::uint64_t sum_before_tile(std::uint64_t* tiles, std::uint32_t tile,
                                                         std::uint64_t own) {
  if (lane_index() == 0)
    publish(tiles + tile, own | (tile == 0 ? TileSums::kUpTo : TileSums::kOwn));
  std::uint64_t before = 0;
  for (std::int64_t last = std::int64_t{tile} - 1; last >= 0; last -= kWarpLanes) {
    const std::int64_t at = last - lane_index();
    std::uint64_t word = TileSums::kUpTo;
    if (at >= 0) {
      do {
        word = read_published(tiles + at);
      } while (word < TileSums::kOwn);
    }
    const unsigned complete = __ballot_sync(kAllLanes, word >= TileSums::kUpTo);
    // Lanes beyond the nearest tile that speaks for all before it have nothing to add.
    const unsigned nearest =
        complete == 0 ? kWarpLanes : static_cast<unsigned>(__ffs(complete)) - 1;
    std::uint64_t counts = lane_index() <= nearest ? word & TileSums::kCounts : 0;
#pragma unroll
    for (int apart = kWarpLanes / 2; apart > 0; apart /= 2)
      counts += __shfl_xor_sync(kAllLanes, counts, apart);
    before += counts;
    if (complete != 0) break;
  }
  if (lane_index() == 0 && tile != 0) publish(tiles + tile, (before + own) | TileSums::kUpTo);
  return before;
}

}  // namespace gradring::cuda
