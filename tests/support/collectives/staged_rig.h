// What the tests of staged collectives share: memory of an emulated GPU as a PlanCase wants it, and
// GPUs that lack something.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives/device/staged.h"
#include "emulator/runtime.h"
#include "gpu/memory.h"
#include "support/collectives/operations.h"

namespace gradring::testing {

// The emulated plugin; the second one says that its devices cannot wait on memory.
const gradring_gpu_api& emulated_gpu();
const gradring_gpu_api& emulated_gpu_without_waits();
// One whose driver has the calls to wait on memory, and refuses them; one that the plugin was not
// compiled for.
const gradring_gpu_api& emulated_gpu_that_refuses_waits();
const gradring_gpu_api& emulated_gpu_without_code();
// The emulated plugin with another runtime, which outlives it.
gradring_gpu_api emulated_gpu_with(const gradring_gpu_runtime& runtime);

gradring_emulated_counts emulated_counts();
// True when all streams have come to their end within `time`.
bool emulated_gpu_comes_to_rest(Millis time);

// One rank's memory of a case on GPU 0, which is host memory.
class DeviceCase {
 public:
  DeviceCase(const gradring_gpu_api& api, const PlanCase& c, const Memory& memory, Rank rank);

  const collectives::Operation& operation() const { return operation_; }
  collectives::Operation& operation() { return operation_; }
  // All of it, as it is now. Nothing of the GPU may be at work on it.
  reference::Buffer bytes() const;
  reference::Buffer output() const;
  void* at(std::size_t offset) const { return memory_.data() + offset; }

 private:
  gpu::Device device_;
  Memory layout_;
  gpu::DeviceMemory memory_;
  collectives::Operation operation_;
};

}  // namespace gradring::testing
