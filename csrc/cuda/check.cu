#include "cuda/check.cuh"

#include "cuda/stream.h"

namespace gradring::cuda {
namespace {

using CheckKernel = void (*)(gradring_check);

CheckKernel check_of(int dtype) {
  switch (dtype) {
    case code(DType::kFloat64): return &check_kernel<Float64>;
    case code(DType::kFloat32): return &check_kernel<Float32>;
    case code(DType::kFloat16): return &check_kernel<Float16>;
    case code(DType::kBFloat16): return &check_kernel<BFloat16>;
    default: return nullptr;
  }
}

}  // namespace

std::size_t check_scratch_bytes(std::uint32_t chunk_count) {
  return chunk_count * sizeof(double);
}

int check(int device, const gradring_check* call, gradring_stream stream) {
  const CheckKernel kernel = check_of(call->dtype);
  if (kernel == nullptr) return GRADRING_GPU_BAD_CALL;
  if (call->chunks.count == 0) return GRADRING_GPU_OK;
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  const auto at = static_cast<cudaStream_t>(stream);
  const int error = launch(kernel, blocks_for(device, call->chunks.count), kThreads, 0, at, *call);
  if (error != 0 || call->square_sum == nullptr) return error;
  return launch(add_squares_kernel, 1, kThreads, 0, at, call->scratch, call->chunks.count,
                call->square_sum);
}

int clip(int device, const gradring_clip* call, gradring_stream stream) {
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  return launch(clip_kernel, 1, 1, 0, static_cast<cudaStream_t>(stream), *call);
}

int preload_checks() {
  Preload loaded;
  for (int dtype = code(DType::kFloat64); dtype <= code(DType::kBFloat16); ++dtype)
    loaded.add(check_of(dtype));
  loaded.add(&add_squares_kernel);
  loaded.add(&clip_kernel);
  return loaded.error();
}

}  // namespace gradring::cuda
