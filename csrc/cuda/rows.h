// The launchers of the row kernels: what their table in gpu/row_calls.h says of them. Called on any
// thread.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "gpu/api.h"

namespace gradring::cuda {

std::uint64_t unique_scratch_bytes(std::uint64_t count);
int unique(int device, const gradring_unique* call, gradring_stream stream);
int segment_sum(int device, const gradring_segment_sum* call, gradring_stream stream);
int gather_rows(int device, const gradring_gather_rows* call, gradring_stream stream);
int put_rows(int device, const gradring_put_rows* call, gradring_stream stream);
int apply_rows(int device, const gradring_apply_rows* call, gradring_stream stream);

int preload_rows(int device);

// For the current device.
int load_unique_kernels();
int load_apply_kernels();

extern const gradring_row_kernels kRowKernels;

}  // namespace gradring::cuda
