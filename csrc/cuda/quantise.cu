// Launchers of the int8 codec's kernels.
#include "cuda/quantise.cuh"

#include "cuda/codecs.h"
#include "cuda/preload.h"

namespace gradring::cuda {
namespace {

bool is_valid(const gradring_codec_sources& sources) {
  return sources.count >= 1 && sources.count <= GRADRING_CODEC_SOURCES && sources.plain >= -1 &&
         sources.plain < sources.count;
}

dim3 grid_for(std::uint64_t count) {
  const std::uint64_t each = kernels::kQuantiseBlock * kBlocksTogether;
  return dim3(static_cast<unsigned>((count + each - 1) / each));
}

// What a grid's first dimension can count.
bool is_too_long(std::uint64_t count) {
  return count / (kernels::kQuantiseBlock * kBlocksTogether) >= 0x7FFFFFFFu;
}

template <typename Call>
int launch_blocks(void (*kernel)(Call), int device, const Call& call, gradring_stream stream) {
  if (call.count == 0) return GRADRING_GPU_OK;
  if (is_too_long(call.count)) return GRADRING_GPU_BAD_CALL;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  return launch(kernel, grid_for(call.count), dim3(kQuantiseThreads), 0,
                static_cast<cudaStream_t>(stream), call);
}

}  // namespace

int quantise(int device, const gradring_quantise* call, gradring_stream stream) {
  return launch_blocks(&quantise_blocks, device, *call, stream);
}

int dequantise(int device, const gradring_dequantise* call, gradring_stream stream) {
  if (!is_valid(call->sources)) return GRADRING_GPU_BAD_CALL;
  return launch_blocks(&dequantise_blocks, device, *call, stream);
}

int requantise(int device, const gradring_requantise* call, gradring_stream stream) {
  if (!is_valid(call->sources) || call->start == GRADRING_SUM_FROM_DST)
    return GRADRING_GPU_BAD_CALL;
  return launch_blocks(&requantise_blocks, device, *call, stream);
}

int load_quantise_kernels() {
  return load_kernels(&quantise_blocks, &dequantise_blocks, &requantise_blocks);
}

}  // namespace gradring::cuda
