// TurnWait: how long a call waits for its turn behind others of its communicator. Its time counts
// from the last progress of what comes before it, as an operation's own does. Used by one thread.
#pragma once

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "transport/membership/group.h"

namespace gradring::collectives {

class TurnWait {
 public:
  TurnWait(const transport::Group& group, Millis timeout)
      : group_(group), timeout_(std::min(timeout, kForGood)), seen_(group.progress()) {}

  bool is_over() {
    const std::uint64_t progress = group_.progress();
    if (progress != std::exchange(seen_, progress)) since_ = Clock::now();
    return Clock::now() - since_ >= timeout_;
  }
  // Until the next look.
  Millis slice() const {
    const auto left =
        std::chrono::duration_cast<Millis>(since_ + timeout_ - Clock::now()) + Millis{1};
    return std::clamp(left, Millis{0}, limits::kSleepSlice);
  }

 private:
  const transport::Group& group_;
  Millis timeout_;
  std::uint64_t seen_;
  Time since_ = Clock::now();
};

}  // namespace gradring::collectives
