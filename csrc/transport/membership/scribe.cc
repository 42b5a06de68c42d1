#include "transport/membership/scribe.h"

#include <utility>

#include "base/log.h"
#include "base/threads.h"

namespace gradring::transport {
namespace {

constexpr std::size_t kJobsWaiting = 256;

}  // namespace

void Scribe::post(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_ || jobs_.size() >= kJobsWaiting) return;
  try {
    if (!thread_.joinable()) thread_ = start_thread("scribe", [this] { run(); });
  } catch (const DeviceError& error) {
    // A record is lost. It is the monitor that posts most of them, and the job needs that.
    log_warning_once(-1, "scribe", error.what());
    return;
  }
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void Scribe::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    thread = std::move(thread_);
    changed_.notify_one();
  }
  if (thread.joinable()) thread.join();
}

void Scribe::repeat(Millis pause, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    repeated_ = job;
    pause_ = pause;
    next_ = Clock::now() + pause;
  }
  post(std::move(job));
}

void Scribe::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto has_job = [&] { return is_stopping_ || !jobs_.empty(); };
    if (!repeated_) {
      changed_.wait(lock, has_job);
    } else if (!changed_.wait_until(lock, next_, has_job)) {
      jobs_.push_back(repeated_);
      next_ = Clock::now() + pause_;
    }
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace gradring::transport
