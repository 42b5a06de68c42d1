// Memory that a plugin gave: on a device, or on the host where devices reach it (pinned). Owners:
// what is destroyed is given back, so the streams that use it must be done. PinnedPool: slots of
// one size, allocated when first needed and then kept, because pinning takes longer than most
// copies. Everything throws DeviceError. Callable from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device.h"

namespace gradring::gpu {

class DeviceMemory {
 public:
  DeviceMemory(const Device& device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t bytes() const { return bytes_; }

 private:
  const Device& device_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

class PinnedMemory {
 public:
  PinnedMemory(const Device& device, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  std::size_t bytes() const { return bytes_; }

 private:
  const Device& device_;
  std::size_t bytes_;
  void* memory_ = nullptr;
};

class PinnedPool {
 public:
  // At most `bound_bytes` in all.
  PinnedPool(const Device& device, std::size_t slot_bytes, std::size_t bound_bytes);

  std::size_t slot_bytes() const { return slot_bytes_; }
  // Throws DeviceError where the bound is reached, or the machine has no more.
  std::byte* take();
  void give_back(std::byte* slot);
  std::size_t taken() const;
  std::size_t allocated_bytes() const;

 private:
  const Device& device_;
  const std::size_t slot_bytes_;
  const std::size_t most_slots_;
  mutable std::mutex mutex_;  // Guards the rest; not held while the driver is called.
  std::size_t slots_ = 0;     // With those that are being made.
  std::vector<std::unique_ptr<PinnedMemory>> memory_;
  std::vector<std::byte*> free_;
};

}  // namespace gradring::gpu
