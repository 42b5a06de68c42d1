// What libgradring_cuda.so shows: one function, which hands out one table.
#include "cuda/tables.h"

// Each kind of kernels has its launchers' header; what those include only nvcc can read.
#if __has_include("cuda/stream.h")
#define GRADRING_STREAMING &kStreamKernels
#else
#define GRADRING_STREAMING nullptr
#endif
#if __has_include("cuda/codecs.h")
#define GRADRING_CODECS &kCodecKernels
#else
#define GRADRING_CODECS nullptr
#endif
#if __has_include("cuda/rows.h")
#define GRADRING_ROWS &kRowKernels
#else
#define GRADRING_ROWS nullptr
#endif

namespace gradring::cuda {

extern const gradring_stream_kernels kStreamKernels;
extern const gradring_codec_kernels kCodecKernels;
extern const gradring_row_kernels kRowKernels;

namespace {

constexpr gradring_gpu_api kApi = {
    .abi = GRADRING_GPU_ABI,
    .bytes = sizeof(gradring_gpu_api),
    .build = GRADRING_CUDA_BUILD,
    .error_text = &error_text,
    .runtime = &kRuntime,
    .streaming = GRADRING_STREAMING,
    .codecs = GRADRING_CODECS,
    .rows = GRADRING_ROWS,
};

}  // namespace
}  // namespace gradring::cuda

extern "C" __attribute__((visibility("default"))) const gradring_gpu_api* gradring_gpu_get_api() {
  return &gradring::cuda::kApi;
}
