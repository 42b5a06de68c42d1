// Spares: memory of payloads that a shard has done with, for the payloads to come. Fresh memory
// costs more than what is written to it: the system gives it page by page, and zeroed. Owned by the
// shard's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/config.h"

namespace gradring::ps {

class Spares {
 public:
  // Empty, with room for `bytes` if something was kept that is not much too large: what waits is
  // counted by its size, and may not hold much more than that.
  Bytes take(std::size_t bytes) {
    // The latest first: it is still in the cache.
    for (std::size_t at = kept_.size(); at-- > 0 && bytes >= kLeast;) {
      const std::size_t room = kept_[at].capacity();
      if (room < bytes || room / 2 > bytes) continue;
      Bytes found = std::move(kept_[at]);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(at));
      kept_bytes_ -= room;
      found.clear();
      return found;
    }
    return {};
  }
  void give(Bytes bytes) {
    const std::size_t room = bytes.capacity();
    if (room < kLeast || room > limits::kPsSpareBytes) return;
    while (kept_bytes_ + room > limits::kPsSpareBytes) {
      kept_bytes_ -= kept_.front().capacity();
      kept_.erase(kept_.begin());
    }
    kept_bytes_ += room;
    kept_.push_back(std::move(bytes));
  }
  std::size_t bytes() const { return kept_bytes_; }

 private:
  static constexpr std::size_t kLeast = std::size_t{32} << 10;  // The allocator is good at less.

  std::vector<Bytes> kept_;  // The oldest first.
  std::size_t kept_bytes_ = 0;
};

}  // namespace gradring::ps
