#include "ps/tables/change_log.h"

namespace gradring::ps {

namespace {
constexpr std::size_t kFirstChanges = 1u << 10;
}  // namespace

std::uint64_t ChangeLog::first_after(std::uint64_t stamp) const {
  std::uint64_t low = first_;
  std::uint64_t high = count_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (at(middle).stamp > stamp) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void ChangeLog::grow() {
  std::vector<RowChange> larger(ring_.empty() ? kFirstChanges : ring_.size() * 2);
  for (std::uint64_t i = first_; i < count_; ++i) larger[i & (larger.size() - 1)] = at(i);
  ring_ = std::move(larger);
}

}  // namespace gradring::ps
