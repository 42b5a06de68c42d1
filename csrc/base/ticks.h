// Ticks: the cheapest clock of this machine, for what is stamped on every operation. Cycles of the
// processor's counter where it runs at one rate on all cores, else nanoseconds of the steady clock.
// A TickScale turns them into steady time afterwards. Callable from any thread.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/clock.h"

namespace gradring {

using Ticks = std::uint64_t;  // Never 0 for a stamp that was taken.

extern const bool kTicksAreCycles;  // Asked of the processor when the library is loaded.

inline std::int64_t steady_nanos(Time time = Clock::now()) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

inline Ticks ticks_now() {
#if defined(__x86_64__)
  if (kTicksAreCycles) [[likely]]
    return __rdtsc();
#endif
  return static_cast<Ticks>(steady_nanos());
}

// Both clocks at one moment.
struct TickAnchor {
  Ticks ticks = 0;
  std::int64_t nanos = 0;  // Of the steady clock, since its epoch.

  static TickAnchor read();
};

// Ticks to steady time, by straight lines between anchors: the steady clock is slewed now and then,
// the counter is not.
class TickScale {
 public:
  // Anchors in the order they were read; of too many, every other one is forgotten.
  void add(TickAnchor anchor);
  std::int64_t nanos(Ticks ticks) const;

 private:
  std::vector<TickAnchor> anchors_;
};

}  // namespace gradring
