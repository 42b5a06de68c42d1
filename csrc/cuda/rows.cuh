// Kernels that move and add rows. A thread has kWide columns of a row, 16 bytes of its narrower
// type, or one where rows do not lie on 16 bytes; a block is as wide as a row, if that fits, and
// several rows high.
#pragma once

#include <type_traits>

#include "cuda/memory.cuh"
#include "gpu/row_calls.h"
#include "kernels/half.h"

namespace gradring::cuda {

constexpr unsigned kRowThreads = 256;
// Sums of so many rows are worked on by whole blocks.
constexpr std::uint32_t kLongSum = 128;

// So many items have one access: 16 bytes of them, or the one that it is.
template <typename Item, unsigned kWide>
inline constexpr unsigned kPieceOf = kWide == 1 ? 1 : kWidest / sizeof(Item);

template <typename Item, unsigned kWide>
__device__ __forceinline__ void load_items(const Item* from, Item (&items)[kWide]) {
  constexpr unsigned kPiece = kPieceOf<Item, kWide>;
  static_assert(kWide % kPiece == 0);
#pragma unroll
  for (unsigned begin = 0; begin < kWide; begin += kPiece) {
    const auto piece = run_of<Item, kPiece>(load_constant<kPiece>(from + begin));
#pragma unroll
    for (unsigned i = 0; i < kPiece; ++i) items[begin + i] = piece.at[i];
  }
}

template <typename Item, unsigned kWide>
__device__ __forceinline__ void store_items(Item* to, const Item (&items)[kWide]) {
  constexpr unsigned kPiece = kPieceOf<Item, kWide>;
  static_assert(kWide % kPiece == 0);
#pragma unroll
  for (unsigned begin = 0; begin < kWide; begin += kPiece) {
    Run<Item, kPiece> piece;
#pragma unroll
    for (unsigned i = 0; i < kPiece; ++i) piece.at[i] = items[begin + i];
    store<kPiece>(to + begin, piece);
  }
}

// This thread's row and its first column. The block's second dimension goes over rows, the grid's
// over the columns of rows that are wider than a block.
struct Cell {
  std::uint64_t row;
  unsigned column;

  __device__ __forceinline__ explicit Cell(unsigned wide)
      : row(std::uint64_t{blockIdx.x} * blockDim.y + threadIdx.y),
        column((blockIdx.y * blockDim.x + threadIdx.x) * wide) {}
};

__device__ __forceinline__ std::uint64_t count_of(const std::uint32_t* count_at,
                                                  std::uint64_t most) {
  if (count_at == nullptr) return most;
  const std::uint64_t count = __ldg(count_at);
  return count < most ? count : most;
}

template <typename Number, unsigned kWide>
__device__ __forceinline__ void add_row(const typename Number::Item (&items)[kWide],
                                        float (&sum)[kWide]) {
#pragma unroll
  for (unsigned i = 0; i < kWide; ++i) sum[i] += Number::widened(items[i]);
}

// One place a row of threads. Four rows are on their way at once.
template <typename Number, unsigned kWide>
__global__ void __launch_bounds__(kRowThreads)
    sum_segments(const __grid_constant__ gradring_segment_sum call) {
  using Item = typename Number::Item;
  constexpr unsigned kTogether = 4;
  const Cell cell(kWide);
  if (cell.column >= call.dim || cell.row >= count_of(call.unique_count, call.most)) return;
  const std::uint32_t begin = __ldg(call.starts + cell.row);
  const std::uint32_t end = __ldg(call.starts + cell.row + 1);
  if (end - begin >= kLongSum) return;
  const Item* const rows = static_cast<const Item*>(call.rows) + cell.column;
  const auto load = [&](std::uint32_t at, Item(&items)[kWide]) {
    load_items(rows + std::uint64_t{__ldg(call.positions + at)} * call.dim, items);
  };
  Item items[kTogether][kWide];
  load(begin, items[0]);
  float sum[kWide];
#pragma unroll
  for (unsigned i = 0; i < kWide; ++i) sum[i] = Number::widened(items[0][i]);
  std::uint32_t at = begin + 1;
  for (; at + kTogether <= end; at += kTogether) {
#pragma unroll
    for (unsigned next = 0; next < kTogether; ++next) load(at + next, items[next]);
#pragma unroll
    for (unsigned next = 0; next < kTogether; ++next) add_row<Number>(items[next], sum);
  }
  for (; at < end; ++at) {
    load(at, items[0]);
    add_row<Number>(items[0], sum);
  }
  if (end - begin > 1) {
#pragma unroll
    for (unsigned i = 0; i < kWide; ++i) sum[i] = kernels::with_one_nan(sum[i]);
  }
  float* const to = call.sums + cell.row * call.dim + cell.column;
  if constexpr (kWide == 8) {
    float first[4];
    float second[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      first[i] = sum[i];
      second[i] = sum[4 + i];
    }
    store_items(to, first);
    store_items(to + 4, second);
  } else {
    store_items(to, sum);
  }
}

constexpr unsigned kStageRows = 128;
constexpr unsigned kRowWarps = kRowThreads / kWarpLanes;
constexpr unsigned kStageRowsEach = kStageRows / kRowWarps;

// Rows of a long sum, 32 columns of each, and the long sums that a block has found.
struct Stage {
  float rows[kStageRows][kWarpLanes];
  std::uint32_t found[kRowThreads];
  std::uint32_t found_count;
};

template <typename Number>
__device__ __forceinline__ void load_stage(const gradring_segment_sum& call, std::uint32_t at,
                                           std::uint32_t end, unsigned column,
                                           float (&values)[kStageRowsEach]) {
  const auto* const rows = static_cast<const typename Number::Item*>(call.rows) + column;
  at += threadIdx.x / kWarpLanes * kStageRowsEach;
  const std::uint32_t listed = at + threadIdx.x % kStageRowsEach;  // By this lane for the warp.
  const std::uint32_t position = listed < end ? __ldg(call.positions + listed) : 0;
#pragma unroll
  for (unsigned i = 0; i < kStageRowsEach; ++i) {
    const std::uint64_t row = __shfl_sync(0xFFFFFFFFu, position, static_cast<int>(i));
    const bool is_there = at + i < end && column < call.dim;
    values[i] = is_there ? Number::widened(__ldg(rows + row * call.dim)) : 0.0F;
  }
}

// One place and 32 columns by a whole block: while the first warp adds what is staged, row after
// row, the loads of what comes next are on their way.
template <typename Number>
__device__ __forceinline__ void sum_long(const gradring_segment_sum& call, std::uint32_t place,
                                         Stage& stage) {
  const unsigned lane = threadIdx.x % kWarpLanes;
  const unsigned warp = threadIdx.x / kWarpLanes;
  const unsigned column = blockIdx.y * kWarpLanes + lane;
  const std::uint32_t begin = __ldg(call.starts + place);
  const std::uint32_t end = __ldg(call.starts + place + 1);
  float values[kStageRowsEach];
  load_stage<Number>(call, begin, end, column, values);
  float sum = 0;
  for (std::uint32_t at = begin; at < end; at += kStageRows) {
    __syncthreads();  // What was staged before has been added.
#pragma unroll
    for (unsigned i = 0; i < kStageRowsEach; ++i)
      stage.rows[warp * kStageRowsEach + i][lane] = values[i];
    __syncthreads();
    if (at + kStageRows < end) load_stage<Number>(call, at + kStageRows, end, column, values);
    if (warp != 0) continue;
    const unsigned count = end - at < kStageRows ? end - at : kStageRows;
    for (unsigned row = 0; row < count; ++row)
      sum = at + row == begin ? stage.rows[row][lane] : sum + stage.rows[row][lane];
  }
  if (warp == 0 && column < call.dim)
    call.sums[std::uint64_t{place} * call.dim + column] = kernels::with_one_nan(sum);
}

// Places go to blocks in turn, since those that are long are often neighbours.
template <typename Number>
__global__ void __launch_bounds__(kRowThreads)
    sum_long_segments(const __grid_constant__ gradring_segment_sum call) {
  __shared__ Stage stage;
  const std::uint64_t places = count_of(call.unique_count, call.most);
  for (std::uint64_t first = 0; first * gridDim.x < places; first += kRowThreads) {
    if (threadIdx.x == 0) stage.found_count = 0;
    __syncthreads();
    const std::uint64_t place = (first + threadIdx.x) * gridDim.x + blockIdx.x;
    if (place < places && __ldg(call.starts + place + 1) - __ldg(call.starts + place) >= kLongSum)
      stage.found[atomicAdd(&stage.found_count, 1u)] = static_cast<std::uint32_t>(place);
    __syncthreads();
    const std::uint32_t found = stage.found_count;
    for (std::uint32_t i = 0; i < found; ++i) sum_long<Number>(call, stage.found[i], stage);
    __syncthreads();
  }
}

// The row of the table that place `i` of the slots has; whatever is not below `rows` is missing.
__device__ __forceinline__ std::uint64_t slot_at(const gradring_row_slots& where, std::uint64_t i) {
  return where.slot_bytes == 4 ? __ldg(static_cast<const std::uint32_t*>(where.slots) + i)
                               : __ldg(static_cast<const std::uint64_t*>(where.slots) + i);
}

__device__ __forceinline__ void add_one(std::uint64_t* word) {
  if (word != nullptr) atomicAdd(reinterpret_cast<unsigned long long*>(word), 1ull);
}

template <typename From, typename To>
__device__ __forceinline__ typename To::Item cast(typename From::Item item) {
  if constexpr (std::is_same_v<From, To>) {
    return item;
  } else {
    return To::rounded(From::widened(item));
  }
}

template <typename From, typename To, unsigned kWide>
__global__ void __launch_bounds__(kRowThreads)
    gather(const __grid_constant__ gradring_gather_rows call) {
  const gradring_row_slots& where = call.where;
  const Cell cell(kWide);
  if (cell.column >= where.dim || cell.row >= count_of(where.count_at, where.most)) return;
  const std::uint64_t slot = slot_at(where, cell.row);
  const bool is_there = slot < where.rows;
  typename From::Item items[kWide] = {};
  if (is_there) {
    load_items(
        static_cast<const typename From::Item*>(call.table) + slot * call.stride + cell.column,
        items);
  } else if (cell.column == 0) {
    add_one(where.missing);
  }
  typename To::Item out[kWide];
#pragma unroll
  for (unsigned i = 0; i < kWide; ++i) out[i] = cast<From, To>(items[i]);
  store_items(static_cast<typename To::Item*>(call.out) + cell.row * where.dim + cell.column, out);
}

template <unsigned kWide>
__global__ void __launch_bounds__(kRowThreads) put(const __grid_constant__ gradring_put_rows call) {
  const gradring_row_slots& where = call.where;
  const Cell cell(kWide);
  if (cell.column >= where.dim || cell.row >= count_of(where.count_at, where.most)) return;
  const std::uint64_t slot = slot_at(where, cell.row);
  if (slot >= where.rows) {
    if (cell.column == 0) add_one(where.missing);
    return;
  }
  float items[kWide];
  load_items(call.rows + cell.row * where.dim + cell.column, items);
  store_items(call.table + slot * call.stride + cell.column, items);
}

}  // namespace gradring::cuda
