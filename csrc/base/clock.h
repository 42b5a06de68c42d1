// Time as the core knows it: steady, and handed in. Only the drivers (monitor, waiting loops) read
// the clock; protocol logic is told the time, so that the simulator can step it.
#pragma once

#include <chrono>

namespace gradring {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Millis = std::chrono::milliseconds;

// Longer than anybody waits, and little enough to be added to any time.
inline constexpr Millis kForGood{std::chrono::hours(24 * 365)};

inline double seconds_between(Time begin, Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace gradring
