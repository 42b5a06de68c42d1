// When the next buffer of a snapshot is read out of a shard. Nobody trains: at once. Else evenly,
// as fast as a checkpoint is promised to be (docs/checkpoints.md) and no faster, so that the rest
// of the processor's time is training's. Owned by the shard's thread. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/clock.h"

namespace gradring::ps {

class SavePace {
 public:
  // So many bytes were read at `now`; `last_training` is the last pull or push.
  Time next(std::size_t bytes, Time now, Time last_training) {
    if (now - last_training > kQuietTime) return due_ = now;
    if (due_ == Time{}) due_ = now;  // The first one.
    // What was missed while a buffer was being written is made up for, but not all at once.
    due_ = std::max(due_, now - kMostBehind) + std::chrono::nanoseconds(bytes * 1000 / kMegabytes);
    return due_;
  }

 private:
  static constexpr std::size_t kMegabytes = 540;  // A second.
  // Between two steps of a training that computes for long.
  static constexpr Millis kQuietTime{1000};
  static constexpr Millis kMostBehind{100};

  Time due_{};
};

}  // namespace gradring::ps
