// Guarded<T>: no lock, no value. The only way to share something mutable between threads here,
// besides a commented atomic.
#pragma once

#include <mutex>
#include <utility>

namespace gradring {

template <typename T>
class Guarded {
 public:
  Guarded() = default;
  explicit Guarded(T value) : value_(std::move(value)) {}

  // Calls use(value) under the lock and returns what it returns. `use` must not block.
  template <typename Use>
  decltype(auto) with(Use&& use) {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(value_);
  }
  template <typename Use>
  decltype(auto) with(Use&& use) const {
    const std::lock_guard lock(mutex_);
    return std::forward<Use>(use)(value_);
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

}  // namespace gradring
