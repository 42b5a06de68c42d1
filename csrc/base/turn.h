// Turn: a lock that is held for as long as an operation runs, and waited for in slices. What
// std::timed_mutex does, made of a mutex and a condition, because ThreadSanitizer (GCC 12) does not
// see a timed_mutex being locked and reports races that are none. Knows which thread has it, for
// calls that a signal handler makes inside of another call. Works with std::unique_lock and
// std::lock_guard.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/config.h"

namespace gradring {

class Turn {
 public:
  void lock() {
    while (!try_lock_for(limits::kSleepSlice)) {
    }
  }
  bool try_lock() {
    const std::lock_guard guard(mutex_);
    if (is_taken_) return false;
    take();
    return true;
  }
  template <typename Rep, typename Period>
  bool try_lock_for(const std::chrono::duration<Rep, Period>& time) {
    std::unique_lock guard(mutex_);
    if (!freed_.wait_for(guard, time, [&] { return !is_taken_; })) return false;
    take();
    return true;
  }
  void unlock() {
    give();
    freed_.notify_one();
  }
  // Calls `act` with the turn free, for others and for calls that this thread makes in there, but
  // wakes nobody for it: who waits finds out at its slice's end, if that takes so long. False:
  // somebody has it now, and `act`'s caller no more.
  template <typename Act>
  bool lend(const Act& act) {
    give();
    try {
      act();
    } catch (...) {
      freed_.notify_one();
      throw;
    }
    return try_lock();
  }
  // Whether this thread has it, and would wait for itself.
  bool is_held_here() const {
    return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  void give() {
    const std::lock_guard guard(mutex_);
    is_taken_ = false;
    holder_.store({}, std::memory_order_relaxed);
  }
  void take() {
    is_taken_ = true;
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }

  std::mutex mutex_;  // Guards is_taken_; held for a moment only.
  std::condition_variable freed_;
  bool is_taken_ = false;
  std::atomic<std::thread::id> holder_{};  // A thread asks for itself only: relaxed.
};

}  // namespace gradring
