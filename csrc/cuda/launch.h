// How the plugin's launchers start kernels: one spelling for nvcc and for the block emulator of the
// tests (tests/emulator), which compiles the same text as plain C++. Kernels themselves are written
// as CUDA's; what the emulator has of it: tests/emulator/cuda_emulation.h.
#pragma once

#include <cstddef>

#include "gpu/stream_calls.h"

#if !defined(GRADRING_EMULATED)
#include <cuda_runtime.h>

#include "cuda/runtime.h"

// `name`: the block's dynamic shared memory, an array of `type`.
#define GRADRING_DYNAMIC_SHARED(type, name)                     \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  type* const name = reinterpret_cast<type*>(name##_bytes)
#endif

namespace gradring::cuda {

#if !defined(GRADRING_EMULATED)
// Puts kernel<<<grid, block, shared_bytes, stream>>>(args...) into the stream of the current
// device. Returns 0 or the driver's code. (Emulated: the same function in cuda_emulation.h.)
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
           cudaStream_t stream, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return code_of(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}
#endif

// Blocks that fill the device once, at `blocks_per_multiprocessor`; at most `wanted`, at least 1.
inline unsigned resident_blocks(int device, unsigned blocks_per_multiprocessor,
                                std::size_t wanted) {
  int multiprocessors = 1;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const std::size_t most = static_cast<std::size_t>(multiprocessors) * blocks_per_multiprocessor;
  const std::size_t blocks = wanted < most ? wanted : most;
  return static_cast<unsigned>(blocks > 0 ? blocks : 1);
}

}  // namespace gradring::cuda
