// The emulated plugin's exported functions.
#include "emulator/device.h"
#include "emulator/kernels.h"
#include "emulator/ranges.h"
#include "emulator/runtime.h"

extern "C" {

void gradring_emulated_count(gradring_emulated_counts* counts) {
  using namespace gradring::emulated;
  counts->device_allocations = ranges().count(GRADRING_MEMORY_DEVICE);
  counts->device_bytes = 0;
  for (int device = 0; device < machine().settings.devices; ++device)
    counts->device_bytes += ranges().bytes_on(device);
  counts->pinned_allocations = ranges().count(GRADRING_MEMORY_PINNED);
  counts->streams = machine().streams();
  counts->events = machine().events();
  counts->pending = Queue::pending();
  counts->work_done = Queue::done();
  counts->bytes_copied = machine().bytes_copied();
}

const char* gradring_emulated_fault(int forget) {
  return gradring::emulated::machine().first_fault(forget != 0);
}

void gradring_emulated_fail(const char* entry, int calls) {
  gradring::emulated::machine().fail(entry, calls);
}

int gradring_emulated_enqueue(int device, gradring_stream stream, void (*body)(void*), void* data) {
  return gradring::emulated::enqueue(device, stream, [body, data] { body(data); });
}

void gradring_emulated_capture(int device, gradring_stream stream, int is_captured) {
  if (const auto queue = gradring::emulated::machine().find(device, stream))
    queue->set_captured(is_captured != 0);
}

int gradring_emulated_device_in_use(void) {
  return gradring::emulated::device_in_use();
}

const struct gradring_gpu_api* gradring_gpu_get_api(void) {
  static const gradring::emulated::KernelTables kernels = gradring::emulated::kernel_tables();
  static const gradring_gpu_api api = {
      .abi = GRADRING_GPU_ABI,
      .bytes = sizeof(gradring_gpu_api),
      .build = "emulated on the host",
      .error_text = gradring::emulated::error_text,
      .runtime = &gradring::emulated::kRuntime,
      .streaming = kernels.streaming,
      .codecs = kernels.codecs,
      .rows = kernels.rows,
  };
  return &api;
}
}
