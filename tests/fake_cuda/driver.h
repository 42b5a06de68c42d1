// What the fake CUDA knows of contexts and captures, and nothing else: which devices were opened,
// what each thread's device is, and whether a capture is spoiled by a call of another thread. Its
// calls do nothing. As CUDA since 12.0: to set a device opens it, and whoever has none gets device
// 0 from the first call that needs one.
#pragma once

#include <set>

#include "cuda_runtime_api.h"

namespace gradring::fake_cuda {

inline constexpr int kDevices = 4;
inline constexpr int kNone = -1;

// Nothing is opened, nothing captured; the calling thread has no device.
void reset();
std::set<int> opened();  // Since then.
int device_of_thread();  // Or kNone.
cudaStreamCaptureMode mode_of_thread();
// A graph is captured from `stream`, by some thread in the usual mode. Null: none any more.
void capture(cudaStream_t stream);
bool is_spoiled();  // The capture, by a call that it does not allow.

}  // namespace gradring::fake_cuda
