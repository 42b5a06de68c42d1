#include "base/tallies.h"

#include "base/record.h"
#include "base/types.h"

namespace gradring {

OperationTallies& OperationTallies::of_process() {
  static OperationTallies tallies;
  return tallies;
}

void OperationTallies::add(const Call& call, Ticks taken) {
  Sums& sums = sums_[static_cast<std::size_t>(call.op)];
  sums.operations.fetch_add(1, std::memory_order_relaxed);
  sums.bytes.fetch_add(call.count * item_bytes(call.dtype), std::memory_order_relaxed);
  sums.ticks.fetch_add(taken, std::memory_order_relaxed);
}

std::vector<OperationTallies::Tally> OperationTallies::read() {
  const std::lock_guard lock(mutex_);
  const TickAnchor now = TickAnchor::read();
  if (!are_wanted()) {
    begun_ = now;
    OperationRing::stamp_at_once();
    are_wanted_.store(true, std::memory_order_relaxed);
  }
  const double rate = now.ticks == begun_.ticks ? 0.0
                                                : static_cast<double>(now.nanos - begun_.nanos) /
                                                      static_cast<double>(now.ticks - begun_.ticks);
  std::vector<Tally> tallies;
  for (std::size_t kind = 0; kind < kOpKindCount; ++kind) {
    Sums& sums = sums_[kind];
    const std::uint64_t operations = sums.operations.load(std::memory_order_relaxed);
    if (operations == 0) continue;
    // What has been told stays told: the rate of the two clocks is known better each time, and a
    // sum that went back would be taken for one that has begun anew.
    const Ticks ticks = sums.ticks.load(std::memory_order_relaxed);
    sums.told_nanos +=
        static_cast<std::int64_t>(static_cast<double>(ticks - sums.told_ticks) * rate);
    sums.told_ticks = ticks;
    tallies.push_back({static_cast<OpKind>(kind), operations,
                       sums.bytes.load(std::memory_order_relaxed), sums.told_nanos});
  }
  return tallies;
}

}  // namespace gradring
