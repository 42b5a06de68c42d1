// The runtime half of the plugin: each entry is one call of the CUDA runtime on a given device.
// The calling thread's device stays what it was, and errors come back as the runtime's own codes.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <string_view>

#include "cuda/runtime.h"
#include "cuda/tables.h"

namespace gradring::cuda {
namespace {

// The device some entry was last called for: calls that name none must not open a context on
// device 0, hundreds of megabytes, where this process uses another one.
std::atomic<int> recent_device{0};

}  // namespace

OnDevice::OnDevice(int device) {
  error_ = driver().get_context(&before_);
  if (error_ == 0) enter(device);
  leave_captures_alone();
}

OnDevice::OnDevice() {
  error_ = driver().get_context(&before_);
  if (error_ == 0 && before_ == nullptr) enter(recent_device.load(std::memory_order_relaxed));
  leave_captures_alone();
}

OnDevice::~OnDevice() {
  if (has_changed_mode_) static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
  if (has_changed_) static_cast<void>(driver().set_context(before_));
}

void OnDevice::enter(int device) {
  int current = -1;
  const bool is_here =
      before_ != nullptr && cudaGetDevice(&current) == cudaSuccess && current == device;
  if (!is_here) {
    has_changed_ = true;
    error_ = code_of(cudaSetDevice(device));
  }
  if (error_ == 0) recent_device.store(device, std::memory_order_relaxed);
}

// While any thread captures a graph in the usual mode, queries and allocations of all threads spoil
// the capture, and fail. What is called here never belongs to a capture that it could harm. Needs a
// device: without one the runtime would open device 0.
void OnDevice::leave_captures_alone() {
  if (error_ == 0)
    has_changed_mode_ = code_of(cudaThreadExchangeStreamCaptureMode(&mode_)) == cudaSuccess;
}

namespace {

cudaStream_t stream_of(gradring_stream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t event_of(gradring_event event) {
  return static_cast<cudaEvent_t>(event);
}

// Whether what `query` asks for is done.
template <typename Query>
int readiness_of(const OnDevice& on, Query query) {
  const int code = on.run(query);
  return code == cudaErrorNotReady ? static_cast<int>(GRADRING_GPU_NOT_READY) : code;
}

int device_count(int* count) {
  *count = 0;
  return code_of(cudaGetDeviceCount(count));
}

int driver_version(int* version) {
  *version = 0;
  return code_of(cudaDriverGetVersion(version));
}

int attribute(int device, cudaDeviceAttr which, int32_t* value) {
  int found = 0;
  const int code = code_of(cudaDeviceGetAttribute(&found, which, device));
  *value = found;
  return code;
}

int device_facts(int device, gradring_device_facts* facts) {
  *facts = {};
  cudaDeviceProp properties;
  int code = code_of(cudaGetDeviceProperties(&properties, device));
  if (code != 0) return code;
  std::string_view(properties.name).copy(facts->name, sizeof(facts->name) - 1);
  facts->memory_bytes = properties.totalGlobalMem;
  facts->l2_bytes = static_cast<uint64_t>(properties.l2CacheSize);
  facts->can_wait_on_memory = driver().wait_value.is_there() && driver().write_value.is_there();
  code = code_of(cudaDeviceGetPCIBusId(facts->bus_id, sizeof(facts->bus_id), device));
  if (code == 0) code = attribute(device, cudaDevAttrComputeCapabilityMajor, &facts->major);
  if (code == 0) code = attribute(device, cudaDevAttrComputeCapabilityMinor, &facts->minor);
  if (code == 0) code = attribute(device, cudaDevAttrMultiProcessorCount, &facts->multiprocessors);
  return code;
}

int use_device(int device) {
  return code_of(cudaSetDevice(device));
}

int pointer_facts(const void* pointer, int* kind, int* device) {
  *kind = GRADRING_MEMORY_HOST;
  *device = -1;
  const OnDevice any;
  cudaPointerAttributes found{};
  const int code = any.run([&] { return cudaPointerGetAttributes(&found, pointer); });
  if (code != 0) return code;
  switch (found.type) {
    case cudaMemoryTypeUnregistered: return 0;
    case cudaMemoryTypeHost: *kind = GRADRING_MEMORY_PINNED; break;
    case cudaMemoryTypeDevice: *kind = GRADRING_MEMORY_DEVICE; break;
    case cudaMemoryTypeManaged: *kind = GRADRING_MEMORY_MANAGED; break;
  }
  *device = found.device;
  return 0;
}

int alloc(int device, size_t bytes, void** pointer) {
  *pointer = nullptr;
  return OnDevice(device).run([&] { return cudaMalloc(pointer, bytes); });
}

int free_memory(int device, void* pointer) {
  return OnDevice(device).run([&] { return cudaFree(pointer); });
}

int pinned_alloc(size_t bytes, void** pointer) {
  *pointer = nullptr;
  return OnDevice().run([&] { return cudaHostAlloc(pointer, bytes, cudaHostAllocPortable); });
}

int pinned_free(void* pointer) {
  return OnDevice().run([&] { return cudaFreeHost(pointer); });
}

int pin(void* pointer, size_t bytes) {
  return OnDevice().run([&] { return cudaHostRegister(pointer, bytes, cudaHostRegisterPortable); });
}

int unpin(void* pointer) {
  return OnDevice().run([&] { return cudaHostUnregister(pointer); });
}

int stream_create(int device, int is_urgent, gradring_stream* stream) {
  *stream = nullptr;
  const OnDevice on(device);
  int least = 0;
  int greatest = 0;
  int code = on.run([&] { return cudaDeviceGetStreamPriorityRange(&least, &greatest); });
  if (code != 0) return code;
  cudaStream_t made = nullptr;
  code = on.run([&] {
    return cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                        is_urgent != 0 ? greatest : least);
  });
  *stream = made;
  return code;
}

int stream_destroy(int device, gradring_stream stream) {
  return OnDevice(device).run([&] { return cudaStreamDestroy(stream_of(stream)); });
}

int stream_query(int device, gradring_stream stream) {
  return readiness_of(OnDevice(device), [&] { return cudaStreamQuery(stream_of(stream)); });
}

int stream_synchronize(int device, gradring_stream stream) {
  return OnDevice(device).run([&] { return cudaStreamSynchronize(stream_of(stream)); });
}

int event_create(int device, int is_timed, gradring_event* event) {
  cudaEvent_t made = nullptr;
  const int code = OnDevice(device).run([&] {
    return cudaEventCreateWithFlags(&made,
                                    is_timed != 0 ? cudaEventDefault : cudaEventDisableTiming);
  });
  *event = made;
  return code;
}

int event_destroy(int device, gradring_event event) {
  return OnDevice(device).run([&] { return cudaEventDestroy(event_of(event)); });
}

int event_record(int device, gradring_event event, gradring_stream stream) {
  return OnDevice(device).run([&] { return cudaEventRecord(event_of(event), stream_of(stream)); });
}

// These three know their device from the event, but a thread without any gets device 0 from them.
int event_query(gradring_event event) {
  return readiness_of(OnDevice(), [&] { return cudaEventQuery(event_of(event)); });
}

int event_synchronize(gradring_event event) {
  return OnDevice().run([&] { return cudaEventSynchronize(event_of(event)); });
}

int event_elapsed_ms(gradring_event from, gradring_event to, float* ms) {
  return OnDevice().run([&] { return cudaEventElapsedTime(ms, event_of(from), event_of(to)); });
}

int stream_wait_event(int device, gradring_stream stream, gradring_event event) {
  return OnDevice(device).run(
      [&] { return cudaStreamWaitEvent(stream_of(stream), event_of(event), 0); });
}

// The address the device knows a pinned word by.
int device_address(const OnDevice& on, uint32_t* word, CUdeviceptr* address) {
  void* found = nullptr;
  const int code = on.run([&] { return cudaHostGetDevicePointer(&found, word, 0); });
  *address = reinterpret_cast<CUdeviceptr>(found);
  return code;
}

int stream_wait_value(int device, gradring_stream stream, uint32_t* word, uint32_t value) {
  if (!driver().wait_value.is_there()) return GRADRING_GPU_BAD_CALL;
  const OnDevice on(device);
  CUdeviceptr address = 0;
  const int code = device_address(on, word, &address);
  if (code != 0) return code;
  return driver().wait_value(stream_of(stream), address, value,
                             static_cast<unsigned int>(CU_STREAM_WAIT_VALUE_GEQ));
}

int stream_write_value(int device, gradring_stream stream, uint32_t* word, uint32_t value) {
  if (!driver().write_value.is_there()) return GRADRING_GPU_BAD_CALL;
  const OnDevice on(device);
  CUdeviceptr address = 0;
  const int code = device_address(on, word, &address);
  if (code != 0) return code;
  return driver().write_value(stream_of(stream), address, value,
                              static_cast<unsigned int>(CU_STREAM_WRITE_VALUE_DEFAULT));
}

// Also what would be in a capture's way: the legacy default stream while a stream captures that
// waits for it.
int stream_is_capturing(int device, gradring_stream stream, int* is_capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const int code =
      OnDevice(device).run([&] { return cudaStreamIsCapturing(stream_of(stream), &status); });
  const bool is_in_the_way = code == cudaErrorStreamCaptureImplicit;
  *is_capturing = is_in_the_way || status != cudaStreamCaptureStatusNone ? 1 : 0;
  return is_in_the_way ? 0 : code;
}

int copy(int device, void* to, const void* from, size_t bytes, gradring_stream stream) {
  return OnDevice(device).run(
      [&] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)); });
}

int fill(int device, void* to, int value, size_t bytes, gradring_stream stream) {
  return OnDevice(device).run([&] { return cudaMemsetAsync(to, value, bytes, stream_of(stream)); });
}

}  // namespace

const gradring_gpu_runtime kRuntime = {
    .device_count = &device_count,
    .driver_version = &driver_version,
    .device_facts = &device_facts,
    .pointer_facts = &pointer_facts,
    .alloc = &alloc,
    .free = &free_memory,
    .pinned_alloc = &pinned_alloc,
    .pinned_free = &pinned_free,
    .pin = &pin,
    .unpin = &unpin,
    .stream_create = &stream_create,
    .stream_destroy = &stream_destroy,
    .stream_query = &stream_query,
    .stream_synchronize = &stream_synchronize,
    .event_create = &event_create,
    .event_destroy = &event_destroy,
    .event_record = &event_record,
    .event_query = &event_query,
    .event_synchronize = &event_synchronize,
    .event_elapsed_ms = &event_elapsed_ms,
    .stream_wait_event = &stream_wait_event,
    .stream_wait_value = &stream_wait_value,
    .stream_write_value = &stream_write_value,
    .copy = &copy,
    .fill = &fill,
    .use_device = &use_device,
    .stream_is_capturing = &stream_is_capturing,
};

const char* error_text(int code) {
  if (code == GRADRING_GPU_NOT_READY) return "not ready yet";
  if (code == GRADRING_GPU_BAD_CALL) return "a call that this device or this build does not know";
  thread_local char text[256];
  const auto error = static_cast<cudaError_t>(code);
  std::snprintf(text, sizeof(text), "%s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  return text;
}

}  // namespace gradring::cuda
