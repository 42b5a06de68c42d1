// Kernels that group equal ids: positions are sorted by their ids, stably, eight bits at a time
// from the lowest (the one-sweep radix sort of Adinets and Merrill 2022), then the first of each
// id is marked.
//
//   1. count_digits   reads the ids once and counts all eight digits; a digit that is the same in
//                     all ids needs no pass.
//   2. sort_by_digit  once for each digit: tiles find their ids' places among their own, then where
//                     the tiles before them end, and write 12 bytes for each id.
//   3. mark_heads     numbers the distinct ids in one pass.
//
// Of n ids with p digits that differ: 8 n + 24 n p + 12 n bytes read and written, and what
// mark_heads writes.
#pragma once

#include "cuda/scan.cuh"
#include "gpu/row_calls.h"

namespace gradring::cuda {

constexpr unsigned kUniqueThreads = 256;
constexpr unsigned kUniqueWarps = kUniqueThreads / kWarpLanes;
constexpr unsigned kIdsEach = 8;
constexpr unsigned kIdsOfWarp = kIdsEach * kWarpLanes;
constexpr unsigned kUniqueTile = kUniqueThreads * kIdsEach;
constexpr unsigned kDigitBits = 8;
constexpr unsigned kDigits = 1u << kDigitBits;
constexpr unsigned kPasses = 64 / kDigitBits;

// At the beginning of the scratch memory; zeros at first.
struct UniqueState {
  std::uint32_t begins[kPasses][kDigits];  // Counts at first; then where each digit's ids go.
  std::uint32_t tiles_begun[kPasses + 1];  // The last is mark_heads'.
  std::uint32_t source[kPasses + 1];       // Where a pass finds the ids: 0: in the call; 1, 2.
  std::uint32_t is_needless[kPasses];
  std::uint32_t blocks_done;
  std::uint32_t unused[5];
};

struct UniqueWork {
  gradring_unique call;
  UniqueState* state;
  std::uint64_t* head_tiles;   // mark_heads' sums.
  std::uint32_t* digit_tiles;  // Of each pass, tile and digit.
  std::uint64_t* ids[2];
  std::uint32_t* positions[2];
};

// A tile's count of a digit and how far it reaches, as in TileSums.
constexpr std::uint32_t kOwnCount = 1u << 30;
constexpr std::uint32_t kCountUpTo = 2u << 30;
constexpr std::uint32_t kCountBits = kOwnCount - 1;

__device__ __forceinline__ std::uint32_t digit_of(std::uint64_t id, unsigned pass) {
  return static_cast<std::uint32_t>(id >> (pass * kDigitBits)) & (kDigits - 1);
}

struct IdSource {
  const std::uint64_t* ids;
  const std::uint32_t* positions;  // Null: as they are counted.

  __device__ __forceinline__ IdSource(const UniqueWork& work, unsigned pass) {
    const std::uint32_t source = work.state->source[pass];
    ids = source == 0 ? work.call.ids : work.ids[source - 1];
    positions = source == 0 ? nullptr : work.positions[source - 1];
  }
  __device__ __forceinline__ std::uint32_t position(std::uint32_t at) const {
    return positions == nullptr ? at : __ldg(positions + at);
  }
};

// Counts become begins; passes over digits that are all the same are left out. One warp a pass.
__device__ __forceinline__ void plan_passes(const UniqueWork& work) {
  constexpr unsigned kEach = kDigits / kWarpLanes;
  UniqueState& state = *work.state;
  const unsigned pass = warp_index();
  std::uint32_t counts[kEach];
  std::uint32_t own = 0;
  bool is_one = false;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    counts[i] = __ldcg(state.begins[pass] + lane_index() * kEach + i);
    is_one = is_one || counts[i] == work.call.count;
    own += counts[i];
  }
  std::uint32_t begin = warp_running_sum(own) - own;
#pragma unroll
  for (unsigned i = 0; i < kEach; ++i) {
    state.begins[pass][lane_index() * kEach + i] = begin;
    begin += counts[i];
  }
  const bool is_needless = __any_sync(kAllLanes, is_one) != 0;
  if (lane_index() == 0) state.is_needless[pass] = is_needless ? 1 : 0;
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::uint32_t source = 0;
  for (unsigned i = 0; i < kPasses; ++i) {
    state.source[i] = source;
    if (state.is_needless[i] == 0) source = source == 1 ? 2 : 1;
  }
  state.source[kPasses] = source;
}

__global__ void __launch_bounds__(kUniqueThreads)
    count_digits(const __grid_constant__ UniqueWork work) {
  __shared__ std::uint32_t counts[kPasses][kDigits];
  __shared__ bool is_last;
#pragma unroll
  for (unsigned pass = 0; pass < kPasses; ++pass) counts[pass][threadIdx.x] = 0;
  __syncthreads();
  const std::uint32_t step = gridDim.x * kUniqueThreads;
  const auto count = static_cast<std::uint32_t>(work.call.count);
  for (std::uint32_t at = blockIdx.x * kUniqueThreads + threadIdx.x; at < count; at += step) {
    const std::uint64_t id = __ldg(work.call.ids + at);
#pragma unroll
    for (unsigned pass = 0; pass < kPasses; ++pass)
      atomicAdd(&counts[pass][digit_of(id, pass)], 1u);
  }
  __syncthreads();
#pragma unroll
  for (unsigned pass = 0; pass < kPasses; ++pass) {
    const std::uint32_t own = counts[pass][threadIdx.x];
    if (own != 0) atomicAdd(&work.state->begins[pass][threadIdx.x], own);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&work.state->blocks_done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  plan_passes(work);
}

struct SortPlaces {
  std::uint64_t ids[kUniqueTile];
  std::uint32_t positions[kUniqueTile];
  std::uint32_t warps[kUniqueWarps][kDigits];  // Of each warp's digits: how many, then where.
  std::uint32_t begins[kDigits];               // Of a digit, less its begin in the tile.
  std::uint32_t sums[kUniqueWarps];
  std::uint32_t tile;
};

// How many ids of this warp with this digit came before: those of earlier rounds, which `counts`
// has, and those of lower lanes.
__device__ __forceinline__ std::uint32_t rank_in_warp(std::uint32_t digit, bool is_there,
                                                      std::uint32_t* counts) {
  std::uint32_t same = __ballot_sync(kAllLanes, is_there);
#pragma unroll
  for (unsigned bit = 0; bit < kDigitBits; ++bit) {
    const bool is_set = (digit >> bit & 1) != 0;
    const std::uint32_t lanes = __ballot_sync(kAllLanes, is_set);
    same &= is_set ? lanes : ~lanes;
  }
  const std::uint32_t earlier = is_there ? counts[digit] : 0;
  __syncwarp();
  const auto lower = static_cast<std::uint32_t>(__popc(same & lanes_before()));
  if (is_there && lower == 0) counts[digit] = earlier + static_cast<std::uint32_t>(__popc(same));
  __syncwarp();
  return earlier + lower;
}

// Of this thread's digit: how many ids the tiles before this one have.
__device__ __forceinline__ std::uint32_t count_before_tile(std::uint32_t* tiles, std::uint32_t tile,
                                                           std::uint32_t own) {
  volatile std::uint32_t* const words = tiles + threadIdx.x;
  words[std::uint64_t{tile} * kDigits] = own | (tile == 0 ? kCountUpTo : kOwnCount);
  std::uint32_t before = 0;
  for (std::uint32_t at = tile; at > 0; --at) {
    std::uint32_t word = 0;
    do {
      word = words[std::uint64_t{at - 1} * kDigits];
    } while (word < kOwnCount);
    before += word & kCountBits;
    if (word >= kCountUpTo) break;
  }
  if (tile != 0) words[std::uint64_t{tile} * kDigits] = (before + own) | kCountUpTo;
  return before;
}

// Where the tile's digits go; called by all threads, each for its digit.
__device__ __forceinline__ void place_digits(const UniqueWork& work, unsigned pass,
                                             SortPlaces& places) {
  const unsigned digit = threadIdx.x;
  std::uint32_t own = 0;
#pragma unroll
  for (unsigned warp = 0; warp < kUniqueWarps; ++warp) {
    const std::uint32_t count = places.warps[warp][digit];
    places.warps[warp][digit] = own;
    own += count;
  }
  const std::uint32_t up_to = warp_running_sum(own);
  if (lane_index() == kWarpLanes - 1) places.sums[warp_index()] = up_to;
  __syncthreads();
  std::uint32_t begin = up_to - own;
  for (unsigned warp = 0; warp < warp_index(); ++warp) begin += places.sums[warp];
#pragma unroll
  for (unsigned warp = 0; warp < kUniqueWarps; ++warp) places.warps[warp][digit] += begin;
  const std::uint64_t tiles = (work.call.count + kUniqueTile - 1) / kUniqueTile;
  const std::uint32_t before =
      count_before_tile(work.digit_tiles + pass * tiles * kDigits, places.tile, own);
  places.begins[digit] = work.state->begins[pass][digit] + before - begin;
}

__global__ void __launch_bounds__(kUniqueThreads)
    sort_by_digit(const __grid_constant__ UniqueWork work, unsigned pass) {
  __shared__ SortPlaces places;
  if (work.state->is_needless[pass] != 0) return;
  if (threadIdx.x == 0) places.tile = atomicAdd(work.state->tiles_begun + pass, 1u);
  std::uint32_t* const counts = places.warps[warp_index()];
  for (unsigned digit = lane_index(); digit < kDigits; digit += kWarpLanes) counts[digit] = 0;
  __syncthreads();
  const IdSource from(work, pass);
  const std::uint32_t begin = places.tile * kUniqueTile;
  const auto count = static_cast<std::uint32_t>(work.call.count);
  const std::uint32_t first = begin + warp_index() * kIdsOfWarp + lane_index();
  std::uint64_t ids[kIdsEach];
  std::uint32_t positions[kIdsEach];
  std::uint32_t ranks[kIdsEach];
#pragma unroll
  for (unsigned i = 0; i < kIdsEach; ++i) {
    const std::uint32_t at = first + i * kWarpLanes;
    ids[i] = at < count ? __ldg(from.ids + at) : 0;
    positions[i] = at < count ? from.position(at) : 0;
  }
#pragma unroll
  for (unsigned i = 0; i < kIdsEach; ++i)
    ranks[i] = rank_in_warp(digit_of(ids[i], pass), first + i * kWarpLanes < count, counts);
  __syncthreads();
  place_digits(work, pass, places);
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < kIdsEach; ++i) {
    if (first + i * kWarpLanes >= count) continue;
    const std::uint32_t at = counts[digit_of(ids[i], pass)] + ranks[i];
    places.ids[at] = ids[i];
    places.positions[at] = positions[i];
  }
  __syncthreads();
  const unsigned target = work.state->source[pass] == 1 ? 1 : 0;
  const std::uint32_t size = count - begin < kUniqueTile ? count - begin : kUniqueTile;
  for (std::uint32_t at = threadIdx.x; at < size; at += kUniqueThreads) {
    const std::uint64_t id = places.ids[at];
    const std::uint32_t to = places.begins[digit_of(id, pass)] + at;
    work.ids[target][to] = id;
    work.positions[target][to] = places.positions[at];
  }
}

struct HeadPlaces {
  std::uint32_t warps[kUniqueWarps];
  std::uint32_t before;
  std::uint32_t tile;
};

__global__ void __launch_bounds__(kUniqueThreads)
    mark_heads(const __grid_constant__ UniqueWork work) {
  __shared__ HeadPlaces places;
  if (threadIdx.x == 0) places.tile = atomicAdd(work.state->tiles_begun + kPasses, 1u);
  __syncthreads();
  const gradring_unique& call = work.call;
  const IdSource from(work, kPasses);
  const auto count = static_cast<std::uint32_t>(call.count);
  const std::uint32_t first = places.tile * kUniqueTile + warp_index() * kIdsOfWarp + lane_index();
  std::uint64_t ids[kIdsEach];
  std::uint32_t heads[kIdsEach];  // Of the warp's lanes.
  std::uint32_t own = 0;
#pragma unroll
  for (unsigned i = 0; i < kIdsEach; ++i) {
    const std::uint32_t at = first + i * kWarpLanes;
    ids[i] = at < count ? __ldg(from.ids + at) : 0;
    const bool is_head = at < count && (at == 0 || __ldg(from.ids + at - 1) != ids[i]);
    heads[i] = __ballot_sync(kAllLanes, is_head);
    own += static_cast<std::uint32_t>(__popc(heads[i]));
  }
  if (lane_index() == 0) places.warps[warp_index()] = own;
  __syncthreads();
  if (warp_index() == 0) {
    std::uint32_t all = 0;
    for (unsigned warp = 0; warp < kUniqueWarps; ++warp) all += places.warps[warp];
    const std::uint64_t before =
        sum_before_tile(work.head_tiles, places.tile, TileSums::packed(all, 0));
    if (lane_index() == 0) places.before = TileSums::first(before);
  }
  __syncthreads();
  std::uint32_t before = places.before;
  for (unsigned warp = 0; warp < warp_index(); ++warp) before += places.warps[warp];
#pragma unroll
  for (unsigned i = 0; i < kIdsEach; ++i) {
    const std::uint32_t at = first + i * kWarpLanes;
    const bool is_head = (heads[i] >> lane_index() & 1) != 0;
    const auto lower = static_cast<std::uint32_t>(__popc(heads[i] & lanes_before()));
    const std::uint32_t place = before + lower + (is_head ? 1 : 0) - 1;
    before += static_cast<std::uint32_t>(__popc(heads[i]));
    if (at >= count) continue;
    const std::uint32_t position = from.position(at);
    call.positions[at] = position;
    if (call.places != nullptr) call.places[position] = place;
    if (is_head) {
      call.unique_ids[place] = ids[i];
      call.starts[place] = at;
    }
    if (at == count - 1) {
      call.starts[place + 1] = count;
      *call.unique_count = place + 1;
    }
  }
}

}  // namespace gradring::cuda
