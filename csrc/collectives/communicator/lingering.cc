// PointToPoint: what becomes, when a communicator is closed well, of messages that were given to it
// and that nobody waits for.
#include "base/config.h"
#include "collectives/communicator/point_to_point.h"

namespace gradring::collectives {
namespace {

constexpr Millis kWithoutProgress{1000};
constexpr Millis kInAll{10000};

}  // namespace

void PointToPoint::linger() {
  const Time end = Clock::now() + kInAll;
  std::uint64_t seen = 0;
  Time patience = Clock::now() + kWithoutProgress;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (given_ == 0 || group_->is_failed()) return;
    }
    const Time now = Clock::now();
    const std::uint64_t pushed = pushed_bytes_.load(std::memory_order_relaxed);
    if (pushed != seen) patience = now + kWithoutProgress;
    if (now >= std::min(patience, end)) return;
    seen = pushed;
    if (!linger_a_moment()) return;
  }
}

// False: it is of no use.
bool PointToPoint::linger_a_moment() {
  // A signal handler has the seat of the wait that it interrupted, which is between two drives.
  std::unique_lock<Turn> seat;
  if (!drive_.is_held_here()) seat = std::unique_lock(drive_, std::try_to_lock);
  if (!seat.owns_lock() && !drive_.is_held_here()) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Millis{1}, [&] { return given_ == 0; });
    return true;
  }
  try {
    mesh_.set_timeout(kWithoutProgress);
    transport::Idle idle(*group_, limits::kSleepSlice, false);
    while (!drive_once() && has_active()) {
      collect_interests();
      idle.on_links(interests_);
    }
  } catch (const transport::DeadlinePassed&) {
  } catch (...) {
    return false;  // The receiver has gone, or does not like what comes.
  }
  return true;
}

}  // namespace gradring::collectives
