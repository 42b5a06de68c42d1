// Patience: waiting for what only a GPU knows: looks again and again, then sleeps in short turns
// between two looks, until the time is over. Used by one thread.
#pragma once

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace gradring::collectives {

class Patience {
 public:
  explicit Patience(Millis timeout) : deadline_(Clock::now() + timeout) {}
  // False when the time is over.
  bool nap() {
    if (++looks_ < kLooks) {
      std::this_thread::yield();
      return true;
    }
    std::this_thread::sleep_for(kNap);
    return Clock::now() < deadline_;
  }

 private:
  // A copy of a few MiB takes some ten microseconds: look that long.
  static constexpr int kLooks = 2000;
  static constexpr std::chrono::microseconds kNap{50};

  Time deadline_;
  int looks_ = 0;
};

}  // namespace gradring::collectives
