// OnDevice: a call of the runtime on a device that is not the calling thread's own, and nothing of
// it left behind. Used by one thread. The emulator has its own (tests/emulator/cuda_emulation.h).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cuda/driver.h"

namespace gradring::cuda {

// Makes `device` the calling thread's, and its context what it was before in the end: a thread that
// had no context has none again. Not by the device's number: to set that opens its context, and a
// thread without one has device 0, which may be another process's alone.
class OnDevice {
 public:
  explicit OnDevice(int device);
  // Any device will do: the thread's own, else the one that this process uses.
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  int error() const { return error_; }  // Not 0: do not launch.
  // 0, or why `call` was not made, or what came of it.
  template <typename Call>
  int run(Call call) const {
    return error_ != 0 ? error_ : code_of(call());
  }

 private:
  void enter(int device);
  void leave_captures_alone();

  CUcontext before_ = nullptr;
  bool has_changed_ = false;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool has_changed_mode_ = false;
  int error_ = 0;
};

}  // namespace gradring::cuda
