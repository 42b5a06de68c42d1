// What the operations of this process have taken so far, by kind, all communicators together: for
// metrics. Nothing is added up before the first reading. Callable from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/call.h"
#include "base/ticks.h"

namespace gradring {

class OperationTallies {
 public:
  static OperationTallies& of_process();
  // Asked at each operation.
  static bool are_wanted() { return are_wanted_.load(std::memory_order_relaxed); }

  void add(const Call& call, Ticks taken);

  struct Tally {
    OpKind op;
    std::uint64_t operations;  // That have ended, well or not.
    std::uint64_t bytes;       // Of their arrays, as called: elements times their size.
    std::int64_t nanos;  // From begin to end. It never goes back from one reading to the next.
  };
  // Of the kinds that there were since the first call of this, which finds none.
  std::vector<Tally> read();

 private:
  struct Sums {
    std::atomic<std::uint64_t> operations{0};  // Statistics: relaxed.
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<Ticks> ticks{0};
    Ticks told_ticks = 0;  // Guarded by mutex_, as the next.
    std::int64_t told_nanos = 0;
  };

  inline static std::atomic<bool> are_wanted_{false};
  std::array<Sums, kOpKindCount> sums_;
  std::mutex mutex_;
  TickAnchor begun_;  // Guarded by mutex_.
};

}  // namespace gradring
