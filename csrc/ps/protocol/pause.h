// Pause: when a driver of links that found nothing to do looks again at once, gives its core away,
// or should sleep. The rule of transport/membership/idle.h for threads that belong to no group: a
// few looks, about 50 us of yields, then sleep. Owned by one thread.
#pragma once

#include <sched.h>

#include <thread>

#include "base/clock.h"
#include "base/config.h"

namespace gradring::ps {

class Pause {
 public:
  // Something was done: the next wait starts with looks again.
  void reset() { idle_ = 0; }

  // Nothing was to be done. False: sleep now.
  bool look_again() {
    if (++idle_ <= looks_) return true;
    const Time before = Clock::now();
    if (before < sleep_until_) return false;
    if (idle_ == looks_ + 1) yield_until_ = before + kYieldTime;
    if (before > yield_until_) return false;
    ::sched_yield();
    // Somebody else needs the core for longer than any of ours would keep it.
    const Time after = Clock::now();
    if (after - before > kStolenTime) sleep_until_ = after + kSleepTime;
    return true;
  }

 private:
  static constexpr std::chrono::microseconds kYieldTime{50};
  static constexpr std::chrono::microseconds kStolenTime{500};
  static constexpr Millis kSleepTime{20};

  int looks_ = std::thread::hardware_concurrency() > 1 ? limits::kLooksBeforeYield : 0;
  int idle_ = 0;
  Time yield_until_{};
  Time sleep_until_{};
};

}  // namespace gradring::ps
