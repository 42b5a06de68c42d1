// The emulated GPU: a plugin (csrc/gpu/api.h) whose devices are host memory, so that everything
// above the plugin runs where there is no GPU. Streams are queues, each with a thread of its own
// and seeded delays; what a real device would forgive or crash on later (memory that is freed, too
// short, or not pinned) is an error at once, and stays one, as a fault of a real device does.
// Loaded through $GRADRING_GPU_PLUGIN, or linked by the C++ tests.
//   GRADRING_EMULATED_DEVICES       how many (2)
//   GRADRING_EMULATED_SEED          of the delays (1)
//   GRADRING_EMULATED_DELAY_US      the longest, before a stream's next piece of work (20)
//   GRADRING_EMULATED_MEMORY_BYTES  of each device (4 GiB)
//   GRADRING_EMULATED_NO_MEMORY_WAITS   1: can_wait_on_memory is 0
#pragma once

#include <cstdint>
#include <functional>

#include "gpu/api.h"

#define GRADRING_EMULATED_EXPORT __attribute__((visibility("default")))

extern "C" {

// What is alive, for tests that want everything given back.
struct gradring_emulated_counts {
  uint64_t device_allocations;
  uint64_t device_bytes;
  uint64_t pinned_allocations;  // Allocated or registered.
  uint64_t streams;             // Created and not destroyed.
  uint64_t events;
  uint64_t pending;    // Pieces of work, on all streams, that are not done.
  uint64_t work_done;  // Since the start.
  uint64_t bytes_copied;
};
GRADRING_EMULATED_EXPORT void gradring_emulated_count(gradring_emulated_counts* counts);
// "" if nothing went wrong on any device so far; else what was wrong first. `forget` 1: the devices
// work again.
GRADRING_EMULATED_EXPORT const char* gradring_emulated_fault(int forget);
// The call after `calls` more of this entry of the runtime ("copy") fails with code 999, once.
GRADRING_EMULATED_EXPORT void gradring_emulated_fail(const char* entry, int calls);

// Runs `body` with `data` on the stream's thread when its turn has come: how what stands for
// another library's kernels gets into the device's streams. 0, or what is wrong with the stream.
GRADRING_EMULATED_EXPORT int gradring_emulated_enqueue(int device, gradring_stream stream,
                                                       void (*body)(void*), void* data);
// From now on a CUDA graph is captured from the stream, or no more: what a call would put into it
// is a fault of the device.
GRADRING_EMULATED_EXPORT void gradring_emulated_capture(int device, gradring_stream stream,
                                                        int is_captured);
// The device that the calling thread has made its own; -1: none.
GRADRING_EMULATED_EXPORT int gradring_emulated_device_in_use(void);

GRADRING_EMULATED_EXPORT const struct gradring_gpu_api* gradring_gpu_get_api(void);
}

namespace gradring::emulated {

extern const gradring_gpu_runtime kRuntime;
const char* error_text(int code);

// Runs `body` on the stream's thread when its turn has come: how kernels are launched. 0, or what
// is wrong with the stream. Never throws; what `body` throws is a fault of the device.
int enqueue(int device, gradring_stream stream, std::function<void()> body);

int device_in_use();  // By the calling thread; -1: none.

// Throws std::out_of_range unless all of it lies in one living allocation that a kernel on the
// device can reach. For emulated kernels that check what they touch.
void check_reachable(const void* pointer, std::size_t bytes);

}  // namespace gradring::emulated
