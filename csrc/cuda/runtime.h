// OnDevice: a call of CUDA's runtime on a device that is not the calling thread's own, and nothing
// of it left behind; and calls of the driver. For one thread each. The emulator has an OnDevice of
// its own (tests/emulator/cuda_emulation.h).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace gradring::cuda {

// An error that is returned is not to be found again by whoever asks cudaGetLastError next.
inline int code_of(cudaError_t error) {
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return static_cast<int>(error);
}
inline int code_of(CUresult result) {
  return static_cast<int>(result);
}  // The numbers are shared.

// What the runtime has no function for, taken from the driver by name: nothing to link, and a
// machine without a driver answers with an error.
template <typename Function>
class DriverCall {
 public:
  DriverCall(const char* name, unsigned int version) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    error_ = cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
    static_cast<void>(version);
    error_ = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
    if (code_of(error_) == cudaSuccess && found != cudaDriverEntryPointSuccess)
      error_ = cudaErrorSymbolNotFound;
    if (error_ == cudaSuccess) call_ = reinterpret_cast<Function>(entry);
  }
  bool is_there() const { return call_ != nullptr; }

  template <typename... Arguments>
  int operator()(Arguments... arguments) const {
    if (call_ == nullptr) return static_cast<int>(error_);
    return code_of(call_(arguments...));
  }

 private:
  Function call_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

struct Driver {
  DriverCall<CUresult (*)(CUcontext*)> get_context{"cuCtxGetCurrent", 4000};
  DriverCall<CUresult (*)(CUcontext)> set_context{"cuCtxSetCurrent", 4000};
  DriverCall<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int)> wait_value{
      "cuStreamWaitValue32", 12000};
  DriverCall<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned int)> write_value{
      "cuStreamWriteValue32", 12000};
};

inline const Driver& driver() {
  static const Driver found;
  return found;
}

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
