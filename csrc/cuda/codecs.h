// The launchers of the codec kernels: what their table in gpu/codec_calls.h says of them. Called on
// any thread.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "gpu/api.h"

namespace gradring::cuda {

int quantise(int device, const gradring_quantise* call, gradring_stream stream);
int dequantise(int device, const gradring_dequantise* call, gradring_stream stream);
int requantise(int device, const gradring_requantise* call, gradring_stream stream);
std::uint64_t sparsify_scratch_bytes(std::uint64_t count);
int sparsify(int device, const gradring_sparsify* call, gradring_stream stream);
int sparsify_above(int device, const gradring_sparsify_above* call, gradring_stream stream);
int desparsify(int device, const gradring_desparsify* call, gradring_stream stream);

int preload_codecs(int device);

// For the current device.
int load_quantise_kernels();

extern const gradring_codec_kernels kCodecKernels;

}  // namespace gradring::cuda
