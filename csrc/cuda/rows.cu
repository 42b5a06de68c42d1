// Launchers of what moves and adds rows, and the table of all row kernels.
#include "cuda/rows.h"

#include "cuda/preload.h"
#include "cuda/rows.cuh"
#include "kernels/reduce.h"

namespace gradring::cuda {
namespace {

constexpr unsigned kMostColumnBlocks = 65535;  // Of a grid's second dimension.

// Threads for `columns` pieces of a row, several rows high.
dim3 block_for(unsigned columns) {
  const unsigned x = columns < kRowThreads ? columns : kRowThreads;
  return dim3(x, kRowThreads / x);
}

dim3 grid_for(std::uint64_t rows, unsigned columns, dim3 block) {
  return dim3(static_cast<unsigned>((rows + block.y - 1) / block.y),
              (columns + block.x - 1) / block.x);
}

bool is_wide(const void* pointer, std::uint64_t row_bytes) {
  return (reinterpret_cast<std::uintptr_t>(pointer) | row_bytes) % 16 == 0;
}

bool is_valid(const gradring_row_slots& where) {
  return (where.slot_bytes == 4 || where.slot_bytes == 8) && where.most <= GRADRING_ROW_IDS;
}

// Columns that a thread has: 16 bytes of the narrower type.
template <typename From, typename To>
constexpr unsigned wide_of() {
  constexpr std::size_t kFrom = sizeof(typename From::Item);
  constexpr std::size_t kTo = sizeof(typename To::Item);
  return 16 / (kFrom < kTo ? kFrom : kTo);
}

// One thread for kWide columns of each of `rows` rows.
template <typename Call>
int launch_cells(void (*kernel)(Call), const Call& call, std::uint64_t rows, unsigned columns,
                 gradring_stream stream) {
  const dim3 block = block_for(columns);
  const dim3 grid = grid_for(rows, columns, block);
  if (grid.y > kMostColumnBlocks) return GRADRING_GPU_BAD_CALL;
  return launch(kernel, grid, block, 0, static_cast<cudaStream_t>(stream), call);
}

template <typename Number>
int sum_rows(int device, const gradring_segment_sum& call, gradring_stream stream) {
  constexpr unsigned kWide = wide_of<Number, Number>();
  const unsigned slabs = (call.dim + kWarpLanes - 1) / kWarpLanes;
  if (slabs > kMostColumnBlocks) return GRADRING_GPU_BAD_CALL;
  const dim3 long_grid(resident_blocks(device, 2, call.most), slabs);
  if (const int error = launch(&sum_long_segments<Number>, long_grid, dim3(kRowThreads), 0,
                               static_cast<cudaStream_t>(stream), call))
    return error;
  const bool is_wide_row = is_wide(call.rows, call.dim * sizeof(typename Number::Item)) &&
                           is_wide(call.sums, call.dim * sizeof(float));
  if (is_wide_row)
    return launch_cells(&sum_segments<Number, kWide>, call, call.most, call.dim / kWide, stream);
  return launch_cells(&sum_segments<Number, 1>, call, call.most, call.dim, stream);
}

template <typename From, typename To>
int gather_as(const gradring_gather_rows& call, gradring_stream stream) {
  using FromItem = typename From::Item;
  using ToItem = typename To::Item;
  constexpr unsigned kWide = wide_of<From, To>();
  const gradring_row_slots& where = call.where;
  if (where.dim % kWide == 0 && is_wide(call.table, call.stride * sizeof(FromItem)) &&
      is_wide(call.out, where.dim * sizeof(ToItem)))
    return launch_cells(&gather<From, To, kWide>, call, where.most, where.dim / kWide, stream);
  return launch_cells(&gather<From, To, 1>, call, where.most, where.dim, stream);
}

template <typename From>
int gather_from(const gradring_gather_rows& call, gradring_stream stream) {
  switch (static_cast<DType>(call.out_dtype)) {
    case DType::kFloat32: return gather_as<From, kernels::Float32>(call, stream);
    case DType::kFloat16: return gather_as<From, kernels::Float16>(call, stream);
    case DType::kBFloat16: return gather_as<From, kernels::BFloat16>(call, stream);
    default: return GRADRING_GPU_BAD_CALL;
  }
}

template <typename Number>
int load_sums() {
  return load_kernels(&sum_long_segments<Number>, &sum_segments<Number, wide_of<Number, Number>()>,
                      &sum_segments<Number, 1>);
}

template <typename From>
int load_gathers() {
  using kernels::BFloat16;
  using kernels::Float16;
  using kernels::Float32;
  return load_kernels(&gather<From, Float32, wide_of<From, Float32>()>, &gather<From, Float32, 1>,
                      &gather<From, Float16, wide_of<From, Float16>()>, &gather<From, Float16, 1>,
                      &gather<From, BFloat16, wide_of<From, BFloat16>()>,
                      &gather<From, BFloat16, 1>);
}

template <typename... Numbers>
int load_of_all() {
  int error = load_kernels(&put<4>, &put<1>);
  ((error = error != 0 ? error : load_sums<Numbers>()), ...);
  ((error = error != 0 ? error : load_gathers<Numbers>()), ...);
  return error;
}

}  // namespace

int segment_sum(int device, const gradring_segment_sum* call, gradring_stream stream) {
  if (call->most > GRADRING_ROW_IDS) return GRADRING_GPU_BAD_CALL;
  if (call->most == 0 || call->dim == 0) return GRADRING_GPU_OK;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  switch (static_cast<DType>(call->dtype)) {
    case DType::kFloat32: return sum_rows<kernels::Float32>(device, *call, stream);
    case DType::kFloat16: return sum_rows<kernels::Float16>(device, *call, stream);
    case DType::kBFloat16: return sum_rows<kernels::BFloat16>(device, *call, stream);
    default: return GRADRING_GPU_BAD_CALL;
  }
}

int gather_rows(int device, const gradring_gather_rows* call, gradring_stream stream) {
  if (!is_valid(call->where)) return GRADRING_GPU_BAD_CALL;
  if (call->where.most == 0 || call->where.dim == 0) return GRADRING_GPU_OK;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  switch (static_cast<DType>(call->table_dtype)) {
    case DType::kFloat32: return gather_from<kernels::Float32>(*call, stream);
    case DType::kFloat16: return gather_from<kernels::Float16>(*call, stream);
    case DType::kBFloat16: return gather_from<kernels::BFloat16>(*call, stream);
    default: return GRADRING_GPU_BAD_CALL;
  }
}

int put_rows(int device, const gradring_put_rows* call, gradring_stream stream) {
  const gradring_row_slots& where = call->where;
  if (!is_valid(where)) return GRADRING_GPU_BAD_CALL;
  if (where.most == 0 || where.dim == 0) return GRADRING_GPU_OK;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  if (is_wide(call->table, call->stride * sizeof(float)) &&
      is_wide(call->rows, where.dim * sizeof(float)))
    return launch_cells(&put<4>, *call, where.most, where.dim / 4, stream);
  return launch_cells(&put<1>, *call, where.most, where.dim, stream);
}

int preload_rows(int device) {
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  if (const int error = load_unique_kernels()) return error;
  if (const int error = load_apply_kernels()) return error;
  return load_of_all<kernels::Float32, kernels::Float16, kernels::BFloat16>();
}

const gradring_row_kernels kRowKernels = {
    sizeof(gradring_row_kernels),
    &unique_scratch_bytes,
    &unique,
    &segment_sum,
    &gather_rows,
    &put_rows,
    &apply_rows,
    &preload_rows,
};

}  // namespace gradring::cuda
