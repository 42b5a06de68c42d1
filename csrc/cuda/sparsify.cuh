// Kernels of the top-k codec (kernels/codec.h). Magnitudes are ordered like the integers that their
// bits make, 31 of them. The smallest one that is kept is found 11, 10 and 10 bits at a time:
//
//   1. count_keys<0>  v = values + residual -> residual; counts the upper 11 bits. The last block
//                     to end finds the border: the value of these bits that the kept-th has.
//   2. count_keys<1>  reads v; counts the next 10 bits of what lies on the border, and lists it if
//                     it is few enough (an eighth).
//   3. count_keys<2>  reads the list (else v); counts the last 10 bits. Now the smallest kept
//                     magnitude is known, and how many of those that equal it are kept.
//   4. take_largest   reads v; tiles add up how many before them are kept and equal; writes indices
//                     and values, and zeros to the residual where an element was taken.
//
// Of N elements that is N (4 + 8) bytes for 1, 4 N for each of 2 and 4, and what is kept. With a
// known threshold one pass does it all: take_above.
#pragma once

#include "cuda/scan.cuh"
#include "gpu/codec_calls.h"

namespace gradring::cuda {

constexpr unsigned kSparsifyThreads = 256;
constexpr unsigned kSparsifyWarps = kSparsifyThreads / kWarpLanes;
constexpr unsigned kFoursEach = 4;  // That a thread has of a tile.
constexpr unsigned kSparsifyTile = kSparsifyThreads * kFoursEach * 4;
constexpr unsigned kLevels = 3;
constexpr unsigned kMostBins = 2048;
constexpr std::uint32_t kNoIndex = 0xFFFFFFFFu;

template <int kLevel>
struct Level {
  static constexpr unsigned kShift = kLevel == 0 ? 20 : kLevel == 1 ? 10 : 0;
  static constexpr unsigned kBits = kLevel == 0 ? 11 : 10;
  static constexpr unsigned kBins = 1u << kBits;
};

// At the beginning of the scratch memory; zeros at first. Tiles' sums follow, then the list.
struct SparsifyState {
  std::uint32_t bins[kLevels][kMostBins];
  std::uint32_t blocks_done[kLevels];
  std::uint32_t tiles_begun;
  std::uint32_t prefix;      // The bits of the smallest kept magnitude that are known.
  std::uint32_t wanted;      // How many of those that have these bits are kept.
  std::uint32_t population;  // How many there are on the border of the first level.
  std::uint32_t listed;
  std::uint32_t above;  // take_above: how many were found.
  std::uint32_t unused[7];
};

struct SparsifyWork {
  gradring_sparsify call;
  SparsifyState* state;
  std::uint64_t* tiles;
  std::uint32_t* list;
  std::uint32_t list_room;
};

__device__ __forceinline__ std::uint32_t key_of(float value) {
  return kernels::bits_of(value) & kernels::kMagnitudeBits;
}

// Where this thread's four number `i` of a tile is. Those of a warp are one stretch, in the order
// of i and of lanes.
__device__ __forceinline__ std::uint64_t four_at(std::uint64_t tile, unsigned i) {
  const unsigned first = warp_index() * (kWarpLanes * kFoursEach * 4);
  return tile * kSparsifyTile + first + i * (kWarpLanes * 4) + lane_index() * 4;
}

// The vector that later passes read: the residual holds v once the first pass is over.
__device__ __forceinline__ const float* vector_of(const gradring_sparsify& call) {
  return call.residual != nullptr ? call.residual : call.values;
}

// This thread's part of a tile of values + residual, if there is one.
__device__ __forceinline__ void load_sums(const float* values, const float* residual,
                                          std::uint64_t count, std::uint64_t tile,
                                          Four (&v)[kFoursEach]) {
  const Fours<const float> from(values, count);
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) v[i] = from.constant(four_at(tile, i));
  if (residual == nullptr) return;
  const Fours<const float> others(residual, count);
  Four left[kFoursEach];
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) left[i] = others.load(four_at(tile, i));
#pragma unroll
  for (unsigned e = 0; e < kFoursEach * 4; ++e) {
    float& element = v[e / 4].at[e % 4];
    element = kernels::with_one_nan(element + left[e / 4].at[e % 4]);
  }
}

template <int kLevel>
__device__ __forceinline__ bool is_counted(std::uint32_t key, std::uint32_t prefix) {
  if constexpr (kLevel == 0) return true;
  return key >> (Level<kLevel>::kShift + Level<kLevel>::kBits) == prefix;
}

template <int kLevel>
__device__ __forceinline__ void count_key(std::uint32_t key, std::uint32_t* bins) {
  atomicAdd(bins + ((key >> Level<kLevel>::kShift) & (Level<kLevel>::kBins - 1)), 1u);
}

// Appends those keys of a thread's sixteen that lie on the border; their order does not matter.
__device__ __forceinline__ void list_keys(const SparsifyWork& work, const Four (&v)[kFoursEach],
                                          std::uint32_t chosen) {
  const std::uint32_t own = static_cast<std::uint32_t>(__popc(chosen));
  const std::uint32_t up_to = warp_running_sum(own);
  std::uint32_t first = 0;
  if (lane_index() == kWarpLanes - 1 && up_to > 0) first = atomicAdd(&work.state->listed, up_to);
  first = __shfl_sync(kAllLanes, first, static_cast<int>(kWarpLanes) - 1);
  std::uint32_t at = first + up_to - own;
#pragma unroll
  for (unsigned e = 0; e < kFoursEach * 4; ++e)
    if ((chosen >> e & 1) != 0) work.list[at++] = key_of(v[e / 4].at[e % 4]);
}

template <int kLevel>
__device__ __forceinline__ void count_tile(const SparsifyWork& work, std::uint64_t tile,
                                           std::uint32_t* bins) {
  const gradring_sparsify& call = work.call;
  Four v[kFoursEach];
  if constexpr (kLevel == 0) {
    load_sums(call.values, call.residual, call.count, tile, v);
    const Fours<float> residual(call.residual, call.residual == nullptr ? 0 : call.count);
#pragma unroll
    for (unsigned i = 0; i < kFoursEach; ++i) residual.store(four_at(tile, i), v[i]);
  } else {
    load_sums(vector_of(call), nullptr, call.count, tile, v);
  }
  const std::uint32_t prefix = kLevel == 0 ? 0 : work.state->prefix;
  std::uint32_t chosen = 0;
#pragma unroll
  for (unsigned e = 0; e < kFoursEach * 4; ++e) {
    const std::uint32_t key = key_of(v[e / 4].at[e % 4]);
    if (four_at(tile, e / 4) + e % 4 >= call.count || !is_counted<kLevel>(key, prefix)) continue;
    count_key<kLevel>(key, bins);
    chosen |= 1u << e;
  }
  if (kLevel == 1 && work.state->population <= work.list_room) list_keys(work, v, chosen);
}

// The bin in which the `wanted`-th from the top lies becomes part of the prefix. Called by all
// threads of one block, when all have counted.
template <int kLevel>
__device__ __forceinline__ void find_border(const SparsifyWork& work, std::uint32_t* shared) {
  constexpr unsigned kEach = Level<kLevel>::kBins / kSparsifyThreads;
  SparsifyState& state = *work.state;
  const unsigned top = Level<kLevel>::kBins - 1 - threadIdx.x * kEach;  // This thread's first bin.
  std::uint32_t counts[kEach];
  std::uint32_t own = 0;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    counts[i] = __ldcg(state.bins[kLevel] + top - i);
    own += counts[i];
  }
  const std::uint32_t up_to = warp_running_sum(own);
  if (lane_index() == kWarpLanes - 1) shared[warp_index()] = up_to;
  __syncthreads();
  std::uint32_t above = up_to - own;
  for (unsigned warp = 0; warp < warp_index(); ++warp) above += shared[warp];
  const std::uint32_t wanted =
      kLevel == 0 ? static_cast<std::uint32_t>(work.call.kept) : __ldcg(&state.wanted);
  __syncthreads();  // All have read what one is about to change.
  if (above >= wanted || above + own < wanted) return;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    if (above < wanted && above + counts[i] >= wanted) {
      state.prefix = (state.prefix << Level<kLevel>::kBits) | (top - i);
      state.wanted = wanted - above;
      if (kLevel == 0) state.population = counts[i];
    }
    above += counts[i];
  }
}

template <int kLevel>
__global__ void __launch_bounds__(kSparsifyThreads)
    count_keys(const __grid_constant__ SparsifyWork work) {
  __shared__ std::uint32_t bins[kMostBins];
  __shared__ bool is_last;
  for (unsigned bin = threadIdx.x; bin < Level<kLevel>::kBins; bin += kSparsifyThreads)
    bins[bin] = 0;
  __syncthreads();
  if (kLevel == 2 && work.state->population <= work.list_room) {
    const std::uint32_t listed = work.state->listed;
    const std::uint32_t prefix = work.state->prefix;
    for (std::uint32_t at = blockIdx.x * kSparsifyThreads + threadIdx.x; at < listed;
         at += gridDim.x * kSparsifyThreads) {
      const std::uint32_t key = __ldg(work.list + at);
      if (is_counted<kLevel>(key, prefix)) count_key<kLevel>(key, bins);
    }
  } else {
    const std::uint64_t tiles = (work.call.count + kSparsifyTile - 1) / kSparsifyTile;
    for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x)
      count_tile<kLevel>(work, tile, bins);
  }
  __syncthreads();
  for (unsigned bin = threadIdx.x; bin < Level<kLevel>::kBins; bin += kSparsifyThreads)
    if (bins[bin] != 0) atomicAdd(work.state->bins[kLevel] + bin, bins[bin]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(work.state->blocks_done + kLevel, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  find_border<kLevel>(work, bins);
}

// Which of a thread's sixteen elements are certain to be taken, and which equal the smallest.
struct Found {
  std::uint32_t certain;
  std::uint32_t equal;
};

// What the tiles' blocks share while they place their elements.
struct TilePlaces {
  std::uint64_t warps[kSparsifyWarps];
  std::uint64_t before;
  std::uint32_t tile;
};

// The number of this block's tile, in the order in which blocks begin.
__device__ __forceinline__ std::uint32_t begin_tile(std::uint32_t* tiles_begun,
                                                    TilePlaces& places) {
  if (threadIdx.x == 0) places.tile = atomicAdd(tiles_begun, 1u);
  __syncthreads();
  return places.tile;
}

// For each four of this thread how many elements before it, in the whole vector, were found:
// packed as in TileSums. Of a warp's 128 elements in one four of each lane, counts fit 8 bits.
__device__ __forceinline__ void count_before(std::uint64_t* tiles, std::uint32_t tile,
                                             const Found& found, TilePlaces& places,
                                             std::uint64_t (&before)[kFoursEach]) {
  std::uint32_t certain = 0;
  std::uint32_t equal = 0;
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) {
    certain |= static_cast<std::uint32_t>(__popc(found.certain >> (4 * i) & 0xFu)) << (8 * i);
    equal |= static_cast<std::uint32_t>(__popc(found.equal >> (4 * i) & 0xFu)) << (8 * i);
  }
  const std::uint32_t certain_up_to = warp_running_sum(certain);
  const std::uint32_t equal_up_to = warp_running_sum(equal);
  const int last = static_cast<int>(kWarpLanes) - 1;
  const std::uint32_t certain_all = __shfl_sync(kAllLanes, certain_up_to, last);
  const std::uint32_t equal_all = __shfl_sync(kAllLanes, equal_up_to, last);
  std::uint64_t sum = 0;
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) {
    before[i] = sum + TileSums::packed((certain_up_to - certain) >> (8 * i) & 0xFFu,
                                       (equal_up_to - equal) >> (8 * i) & 0xFFu);
    sum += TileSums::packed(certain_all >> (8 * i) & 0xFFu, equal_all >> (8 * i) & 0xFFu);
  }
  if (lane_index() == 0) places.warps[warp_index()] = sum;
  __syncthreads();
  if (warp_index() == 0) {
    std::uint64_t all = 0;
    for (unsigned warp = 0; warp < kSparsifyWarps; ++warp) all += places.warps[warp];
    const std::uint64_t of_others = sum_before_tile(tiles, tile, all);
    if (lane_index() == 0) places.before = of_others;
  }
  __syncthreads();
  sum = places.before;
  for (unsigned warp = 0; warp < warp_index(); ++warp) sum += places.warps[warp];
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) before[i] += sum;
}

// All indices, then all values.
struct SparseOut {
  std::uint8_t* bytes;
  std::uint64_t room;
  bool is_wide;

  __device__ __forceinline__ SparseOut(void* out, std::uint64_t places)
      : bytes(static_cast<std::uint8_t*>(out)), room(places), is_wide(is_aligned(out, 4)) {}
  __device__ __forceinline__ void write(std::uint64_t place, std::uint32_t index,
                                        float value) const {
    store_word(bytes + 4 * place, is_wide, index);
    store_word(bytes + 4 * (room + place), is_wide, kernels::bits_of(value));
  }
};

__global__ void __launch_bounds__(kSparsifyThreads)
    take_largest(const __grid_constant__ SparsifyWork work) {
  __shared__ TilePlaces places;
  const std::uint32_t tile = begin_tile(&work.state->tiles_begun, places);
  const gradring_sparsify& call = work.call;
  const Fours<const float> vector(vector_of(call), call.count);
  Four v[kFoursEach];
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) v[i] = vector.load(four_at(tile, i));
  const std::uint32_t smallest = work.state->prefix;
  const std::uint32_t wanted = work.state->wanted;
  Found found = {0, 0};
#pragma unroll
  for (unsigned e = 0; e < kFoursEach * 4; ++e) {
    if (four_at(tile, e / 4) + e % 4 >= call.count) continue;
    const std::uint32_t key = key_of(v[e / 4].at[e % 4]);
    if (key > smallest) found.certain |= 1u << e;
    if (key == smallest) found.equal |= 1u << e;
  }
  std::uint64_t before[kFoursEach];
  count_before(work.tiles, tile, found, places, before);
  const SparseOut out(call.out, call.kept);
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) {
    std::uint32_t certain = TileSums::first(before[i]);
    std::uint32_t equal = TileSums::second(before[i]);
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint64_t at = four_at(tile, i) + k;
      const bool is_certain = (found.certain >> (4 * i + k) & 1) != 0;
      const bool is_equal = (found.equal >> (4 * i + k) & 1) != 0;
      const bool is_taken = is_certain || (is_equal && equal < wanted);
      if (is_taken)
        out.write(certain + (equal < wanted ? equal : wanted), static_cast<std::uint32_t>(at),
                  v[i].at[k]);
      // More values that are not finite than places: they must not stay for ever.
      if (call.residual != nullptr && at < call.count &&
          (is_taken || !kernels::is_finite(v[i].at[k])))
        call.residual[at] = 0;
      certain += is_certain ? 1 : 0;
      equal += is_equal ? 1 : 0;
    }
  }
}

struct SparsifyAboveWork {
  gradring_sparsify_above call;
  SparsifyState* state;
  std::uint64_t* tiles;
};

__global__ void __launch_bounds__(kSparsifyThreads)
    take_above(const __grid_constant__ SparsifyAboveWork work) {
  __shared__ TilePlaces places;
  const std::uint32_t tile = begin_tile(&work.state->tiles_begun, places);
  const gradring_sparsify_above& call = work.call;
  const Fours<float> residual(call.residual, call.residual == nullptr ? 0 : call.count);
  Four v[kFoursEach];
  load_sums(call.values, call.residual, call.count, tile, v);
  const float threshold = call.threshold_at == nullptr ? call.threshold : __ldg(call.threshold_at);
  const std::uint32_t magnitude = key_of(threshold);
  const std::uint32_t least =
      magnitude < kernels::kInfinityBits ? magnitude : kernels::kInfinityBits;
  Found found = {0, 0};
#pragma unroll
  for (unsigned e = 0; e < kFoursEach * 4; ++e) {
    if (four_at(tile, e / 4) + e % 4 < call.count && key_of(v[e / 4].at[e % 4]) >= least)
      found.certain |= 1u << e;
  }
  std::uint64_t before[kFoursEach];
  count_before(work.tiles, tile, found, places, before);
  const SparseOut out(call.out, call.capacity);
#pragma unroll
  for (unsigned i = 0; i < kFoursEach; ++i) {
    std::uint32_t place = TileSums::first(before[i]);
    Four left;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const bool is_found = (found.certain >> (4 * i + k) & 1) != 0;
      const bool is_taken = is_found && place < call.capacity;
      if (is_taken) out.write(place, static_cast<std::uint32_t>(four_at(tile, i) + k), v[i].at[k]);
      left.at[k] = is_taken || !kernels::is_finite(v[i].at[k]) ? 0.0F : v[i].at[k];
      place += is_found ? 1 : 0;
    }
    residual.store(four_at(tile, i), left);
    // The last thread of the last tile has seen them all.
    if (tile == gridDim.x - 1 && i == kFoursEach - 1 && threadIdx.x == kSparsifyThreads - 1) {
      work.state->above = place;
      if (call.kept_at != nullptr) *call.kept_at = place;
    }
  }
}

// Places that take_above left free.
__global__ void __launch_bounds__(kSparsifyThreads)
    fill_places(const __grid_constant__ SparsifyAboveWork work) {
  const SparseOut out(work.call.out, work.call.capacity);
  const std::uint64_t step = std::uint64_t{gridDim.x} * kSparsifyThreads;
  std::uint64_t place = std::uint64_t{blockIdx.x} * kSparsifyThreads + threadIdx.x;
  for (place += work.state->above; place < work.call.capacity; place += step)
    out.write(place, kNoIndex, 0.0F);
}

__global__ void __launch_bounds__(kSparsifyThreads) add_sparse(const gradring_desparsify call) {
  const std::uint64_t place = std::uint64_t{blockIdx.x} * kSparsifyThreads + threadIdx.x;
  if (place >= call.kept) return;
  const std::uint8_t* const bytes = static_cast<const std::uint8_t*>(call.from);
  const bool is_wide = is_aligned(bytes, 4);
  const std::uint32_t index = load_word(bytes + 4 * place, is_wide);
  const float value = kernels::float_of(load_word(bytes + 4 * (call.kept + place), is_wide));
  if (index < call.count) call.dst[index] = kernels::with_one_nan(call.dst[index] + value);
}

}  // namespace gradring::cuda
