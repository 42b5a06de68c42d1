#include "cuda/stream.h"

namespace gradring::cuda {
namespace {

int preload(int device) {
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  for (const auto& group : {preload_packs, preload_reductions, preload_checks, preload_steps})
    if (const int error = group(); error != 0) return error;
  return GRADRING_GPU_OK;
}

}  // namespace

const gradring_stream_kernels kStreamKernels = {
    .bytes = sizeof(gradring_stream_kernels),
    .pack = &pack,
    .unpack = &unpack,
    .reduce = &reduce,
    .check = &check,
    .check_scratch_bytes = &check_scratch_bytes,
    .clip = &clip,
    .sgd = &sgd,
    .adam = &adam,
    .preload = &preload,
};

}  // namespace gradring::cuda
