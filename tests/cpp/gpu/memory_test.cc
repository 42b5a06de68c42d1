// Pools of pinned memory: what one thread waits for in the driver keeps no other waiting.
#include "gpu/memory.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "emulator/runtime.h"

namespace gradring::testing::memory_test {
namespace {

constexpr std::size_t kSlot = 4096;
constexpr std::chrono::seconds kLongest{5};

// A driver that pins nothing while it is busy, as where it waits for a device.
std::atomic<bool> is_busy{false};
std::atomic<bool> is_asked{false};
std::atomic<bool> was_stuck{false};

int pinned_alloc(std::size_t bytes, void** pointer) {
  const Time deadline = Clock::now() + kLongest;
  if (is_busy) is_asked = true;
  while (is_busy && !was_stuck) {
    if (Clock::now() > deadline) was_stuck = true;
    std::this_thread::yield();
  }
  return gradring_gpu_get_api()->runtime->pinned_alloc(bytes, pointer);
}

const gradring_gpu_api& slow_gpu() {
  static const gradring_gpu_runtime runtime = [] {
    gradring_gpu_runtime changed = *gradring_gpu_get_api()->runtime;
    changed.pinned_alloc = &pinned_alloc;
    return changed;
  }();
  static const gradring_gpu_api api = [] {
    gradring_gpu_api changed = *gradring_gpu_get_api();
    changed.runtime = &runtime;
    return changed;
  }();
  return api;
}

TEST_CASE("slots of pinned memory come back while the driver makes another one") {
  const gpu::Device device(slow_gpu(), 0);
  gpu::PinnedPool pool(device, kSlot, 2 * kSlot);
  std::byte* const first = pool.take();
  is_busy = true;
  std::byte* second = nullptr;
  std::thread other([&] { second = pool.take(); });
  while (!is_asked) std::this_thread::yield();
  pool.give_back(first);
  CHECK(pool.take() == first);
  is_busy = false;
  other.join();
  CHECK(!was_stuck);
  CHECK(pool.taken() == 2);
  CHECK_THROWS_AS(pool.take(), DeviceError);
  pool.give_back(second);
  CHECK(pool.allocated_bytes() == 2 * kSlot);
}

TEST_CASE("a slot that the driver has no memory for counts as none") {
  const gpu::Device device(*gradring_gpu_get_api(), 0);
  gpu::PinnedPool pool(device, kSlot, kSlot);
  gradring_emulated_fail("pinned_alloc", 0);
  CHECK_THROWS_AS(pool.take(), DeviceError);
  CHECK(pool.take() != nullptr);
}

}  // namespace
}  // namespace gradring::testing::memory_test
