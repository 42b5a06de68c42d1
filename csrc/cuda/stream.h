// The launchers of the streaming kernels: what their table in gpu/stream_calls.h says of them.
// Called on any thread.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "gpu/api.h"
#include "kernels/reduce.h"

namespace gradring::cuda {

int pack(int device, const gradring_pack* call, gradring_stream stream);
int unpack(int device, const gradring_unpack* call, gradring_stream stream);
int reduce(int device, const gradring_reduce* call, gradring_stream stream);
int check(int device, const gradring_check* call, gradring_stream stream);
std::size_t check_scratch_bytes(std::uint32_t chunk_count);
int clip(int device, const gradring_clip* call, gradring_stream stream);
int sgd(int device, const gradring_step* call, gradring_stream stream);
int adam(int device, const gradring_step* call, gradring_stream stream);

// For the current device.
int preload_packs();
int preload_reductions();
int preload_checks();
int preload_steps();

extern const gradring_stream_kernels kStreamKernels;

constexpr int code(DType dtype) {
  return static_cast<int>(dtype);
}

constexpr unsigned bytes_of(int dtype) {
  constexpr unsigned kBytes[kDTypeCount] = {8, 4, 2, 2, 1, 2, 4, 8, 1, 1};
  return dtype >= 0 && dtype < static_cast<int>(kDTypeCount) ? kBytes[dtype] : 0;
}

// Brings kernels to the current device.
class Preload {
 public:
  template <typename... Params>
  void add(void (*kernel)(Params...)) {
    cudaFuncAttributes attributes;
    if (kernel == nullptr || error_ != 0) return;
    error_ = cudaFuncGetAttributes(&attributes, kernel);
    if (error_ != 0) static_cast<void>(cudaGetLastError());  // As in preload.h.
  }
  int error() const { return error_; }

 private:
  int error_ = 0;
};

}  // namespace gradring::cuda
