#include "collectives/device/gpu_launch.h"

#include <algorithm>

#include "base/config.h"
#include "base/error.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {

void GpuLaunch::note_launched(gpu::StreamView stream) {
  end_.record(stream);
  const std::lock_guard lock(mutex_);
  is_launched_ = true;
  changed_.notify_all();
}

void GpuLaunch::note_over() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

// Without the lock while the driver is asked: it may wait, and who launches must not.
bool GpuLaunch::is_passed() const {
  {
    const std::lock_guard lock(mutex_);
    if (!is_launched_) return false;
  }
  return end_.is_passed();
}

bool GpuLaunch::wait_until_launched(Millis time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return is_launched_ || is_over_; });
  return is_launched_;
}

void GpuLaunch::order(gpu::StreamView stream, const Work& work, Millis timeout) {
  stream.refuse_capture();
  const Time deadline = Clock::now() + std::min(timeout, Millis{std::chrono::hours(24)});
  while (!wait_until_launched(limits::kSleepSlice)) {
    if (work.is_done()) break;
    transport::run_interrupt_check();
    if (Clock::now() >= deadline)
      throw TimedOut(str("wait: the operation is not in its stream after ",
                         seconds_between(Time{}, Time{timeout}), " s; it goes on, wait() again"));
  }
  if (work.is_done()) work.raise_if_failed();
  stream.wait(end_);
}

}  // namespace gradring::collectives
