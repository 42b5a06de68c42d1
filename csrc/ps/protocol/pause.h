// Pause: when a driver of links that found nothing to do looks again at once, gives its core away,
// or should sleep. The rule of transport/membership/idle.h for threads that belong to no group: a
// few looks, about 50 us of yields, then sleep. Nobody tells a server or a worker whether it has a
// core of its own; its yields do: one that returns late had somebody else to let run. Then there
// are no looks, which would keep that one from answering, until yields return at once again. Owned
// by one thread.
#pragma once

#include <sched.h>

#include "base/clock.h"
#include "base/config.h"

namespace gradring::ps {

class Pause {
 public:
  // Something was done: the next wait starts anew.
  void reset() {
    looks_ = 0;
    yields_ = 0;
  }

  // Nothing was to be done. False: sleep now.
  bool look_again() {
    if (yields_ == 0 && crowded_ == 0 && ++looks_ <= limits::kLooksBeforeYield) return true;
    const Time before = Clock::now();
    if (before < sleep_until_) return false;
    if (yields_ == 0) yield_until_ = before + kYieldTime;
    if (before > yield_until_) return false;
    ++yields_;
    ::sched_yield();
    note_yield(before, Clock::now());
    return true;
  }

  bool is_crowded() const { return crowded_ > 0; }

 private:
  static constexpr std::chrono::microseconds kYieldTime{50};
  static constexpr std::chrono::microseconds kSharedTime{3};
  static constexpr std::chrono::microseconds kStolenTime{500};
  static constexpr Millis kSleepTime{20};
  static constexpr int kWaitsToBelieve = 16;

  void note_yield(Time before, Time after) {
    // Somebody else needs the core for longer than any of ours would keep it.
    if (after - before > kStolenTime) sleep_until_ = after + kSleepTime;
    if (after - before > kSharedTime)
      crowded_ = kWaitsToBelieve;
    else if (yields_ == 1 && crowded_ > 0)
      --crowded_;
  }

  int looks_ = 0;
  int yields_ = 0;
  int crowded_ = 0;  // Waits whose first yield has to return at once before looks come again.
  Time yield_until_{};
  Time sleep_until_{};
};

}  // namespace gradring::ps
