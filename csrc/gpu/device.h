// Device: one GPU of a plugin, and what its errors look like. The other owners of gpu/ refer to one
// and must not outlive it. Callable from any thread.
#pragma once

#include <string>

#include "gpu/api.h"

namespace gradring::gpu {

class Device {
 public:
  // Throws DeviceError where there is no such device.
  Device(const gradring_gpu_api& api, int index);

  const gradring_gpu_api& api() const { return api_; }
  const gradring_gpu_runtime& runtime() const { return *api_.runtime; }
  int index() const { return index_; }
  const gradring_device_facts& facts() const { return facts_; }
  bool can_wait_on_memory() const { return facts_.can_wait_on_memory != 0; }
  // Whether the plugin has kernels that move between tensors and buckets, compiled for this device.
  // Brings them to it.
  bool has_streaming() const;
  // The same of codecs.
  bool has_codecs() const;

  // Throws DeviceError "GPU 1 (its name) could not <what>: <the driver's text>" unless code is 0.
  void check(int code, const char* what) const {
    if (code != GRADRING_GPU_OK) [[unlikely]]
      fail(code, what);
  }
  [[noreturn]] void fail(int code, const char* what) const;

 private:
  const gradring_gpu_api& api_;
  const int index_;
  gradring_device_facts facts_{};
};

}  // namespace gradring::gpu
