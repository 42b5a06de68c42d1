// Turn: a lock that is held for as long as an operation runs, and waited for in slices. What
// std::timed_mutex does, made of a mutex and a condition, because ThreadSanitizer (GCC 12) does not
// see a timed_mutex being locked and reports races that are none. Works with std::unique_lock and
// std::lock_guard.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace gradring {

class Turn {
 public:
  void lock() {
    std::unique_lock guard(mutex_);
    freed_.wait(guard, [&] { return !is_taken_; });
    is_taken_ = true;
  }
  bool try_lock() {
    const std::lock_guard guard(mutex_);
    return !std::exchange(is_taken_, true);
  }
  template <typename Rep, typename Period>
  bool try_lock_for(const std::chrono::duration<Rep, Period>& time) {
    std::unique_lock guard(mutex_);
    if (!freed_.wait_for(guard, time, [&] { return !is_taken_; })) return false;
    is_taken_ = true;
    return true;
  }
  void unlock() {
    {
      const std::lock_guard guard(mutex_);
      is_taken_ = false;
    }
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;  // Guards is_taken_; held for a moment only.
  std::condition_variable freed_;
  bool is_taken_ = false;
};

}  // namespace gradring
