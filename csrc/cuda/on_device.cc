#include "cuda/on_device.h"

#include <atomic>

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

}  // namespace gradring::cuda
