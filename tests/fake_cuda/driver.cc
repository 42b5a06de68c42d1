#include "fake_cuda/driver.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string_view>

struct CUctx_st {
  int device;
};

namespace gradring::fake_cuda {
namespace {

CUctx_st contexts[kDevices] = {{0}, {1}, {2}, {3}};
thread_local CUcontext current = nullptr;
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

std::mutex mutex;  // Guards the next.
std::set<int> all_opened;
std::atomic<cudaStream_t> captured{nullptr};
std::atomic<bool> has_spoiled{false};

cudaError_t become(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  const std::lock_guard lock(mutex);
  all_opened.insert(device);
  current = &contexts[device];
  return cudaSuccess;
}

// What every call begins with that needs a device.
cudaError_t use() {
  return current == nullptr ? become(0) : cudaSuccess;
}

// What may wait, and so may not be called while a graph is captured.
cudaError_t use_unsafely() {
  use();
  if (captured.load() == nullptr || mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  has_spoiled = true;
  return cudaErrorStreamCaptureUnsupported;
}

CUresult get_context(CUcontext* context) {
  *context = current;
  return CUDA_SUCCESS;
}
CUresult set_context(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}
CUresult take_value(CUstream, CUdeviceptr, cuuint32_t, unsigned int) {
  return CUDA_SUCCESS;
}

}  // namespace

void reset() {
  const std::lock_guard lock(mutex);
  all_opened.clear();
  captured = nullptr;
  has_spoiled = false;
  current = nullptr;
}
std::set<int> opened() {
  const std::lock_guard lock(mutex);
  return all_opened;
}
int device_of_thread() {
  return current == nullptr ? kNone : current->device;
}
cudaStreamCaptureMode mode_of_thread() {
  return mode;
}
void capture(cudaStream_t stream) {
  captured = stream;
}
bool is_spoiled() {
  return has_spoiled;
}

}  // namespace gradring::fake_cuda

using namespace gradring::fake_cuda;  // NOLINT: what follows is CUDA's.

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::string_view wanted = name;
  *entry = reinterpret_cast<void*>(&take_value);
  if (wanted == "cuCtxGetCurrent") *entry = reinterpret_cast<void*>(&get_context);
  if (wanted == "cuCtxSetCurrent") *entry = reinterpret_cast<void*>(&set_context);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error of the fake";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current == nullptr ? 0 : current->device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return become(device);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02d:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return use();
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* exchanged) {
  use();
  const cudaStreamCaptureMode before = mode;
  mode = *exchanged;
  *exchanged = before;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  use();
  const cudaStream_t one = captured.load();
  *status =
      one != nullptr && one == stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  const bool is_legacy = reinterpret_cast<std::uintptr_t>(stream) <= 1;
  return one != nullptr && is_legacy ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void*) {
  *found = {cudaMemoryTypeUnregistered, 0};
  return use();
}
cudaError_t cudaMalloc(void** pointer, std::size_t) {
  *pointer = nullptr;
  return use_unsafely();
}
cudaError_t cudaFree(void*) {
  return use_unsafely();
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t, unsigned int) {
  *pointer = nullptr;
  return use_unsafely();
}
cudaError_t cudaFreeHost(void*) {
  return use_unsafely();
}
cudaError_t cudaHostRegister(void*, std::size_t, unsigned int) {
  return use_unsafely();
}
cudaError_t cudaHostUnregister(void*) {
  return use_unsafely();
}
cudaError_t cudaHostGetDevicePointer(void** found, void* pointer, unsigned int) {
  *found = pointer;
  return use();
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = nullptr;
  return use();
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return use_unsafely();
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return use_unsafely();
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return use_unsafely();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int) {
  return use();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = nullptr;
  return use();
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return use();
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return use();
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  const cudaError_t error = use_unsafely();
  return error == cudaSuccess ? cudaErrorNotReady : error;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return use_unsafely();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return use();
}
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return use();
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) {
  return use();
}
