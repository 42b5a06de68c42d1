#include "transport/scribe.h"

#include <utility>

namespace gradring::transport {

void Scribe::post(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
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

void Scribe::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace gradring::transport
