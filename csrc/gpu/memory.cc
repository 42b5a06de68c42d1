#include "gpu/memory.h"

#include "base/error.h"

namespace gradring::gpu {

DeviceMemory::DeviceMemory(const Device& device, std::size_t bytes)
    : device_(device), bytes_(bytes) {
  const int code = device.runtime().alloc(device.index(), bytes, &memory_);
  if (code != GRADRING_GPU_OK) device.fail(code, str("allocate ", bytes, " bytes").c_str());
}

DeviceMemory::~DeviceMemory() {
  device_.runtime().free(device_.index(), memory_);
}

PinnedMemory::PinnedMemory(const Device& device, std::size_t bytes)
    : device_(device), bytes_(bytes) {
  const int code = device.runtime().pinned_alloc(bytes, &memory_);
  if (code != GRADRING_GPU_OK)
    device.fail(code, str("get ", bytes, " bytes of pinned host memory").c_str());
}

PinnedMemory::~PinnedMemory() {
  device_.runtime().pinned_free(memory_);
}

PinnedPool::PinnedPool(const Device& device, std::size_t slot_bytes, std::size_t bound_bytes)
    : device_(device), slot_bytes_(slot_bytes), most_slots_(bound_bytes / slot_bytes) {}

std::byte* PinnedPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::byte* const slot = free_.back();
      free_.pop_back();
      return slot;
    }
    if (slots_ >= most_slots_)
      throw DeviceError(str("all ", most_slots_, " slots of ", slot_bytes_,
                            " bytes of pinned host memory are in use"));
    ++slots_;
  }
  // Without the lock: it may wait for the device, and that for who gives a slot back.
  try {
    auto made = std::make_unique<PinnedMemory>(device_, slot_bytes_);
    const std::lock_guard lock(mutex_);
    return memory_.emplace_back(std::move(made))->data();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --slots_;
    throw;
  }
}

void PinnedPool::give_back(std::byte* slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

std::size_t PinnedPool::taken() const {
  const std::lock_guard lock(mutex_);
  return memory_.size() - free_.size();
}

std::size_t PinnedPool::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  return memory_.size() * slot_bytes_;
}

}  // namespace gradring::gpu
