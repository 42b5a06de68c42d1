#include "base/ticks.h"

#include <algorithm>
#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradring {
namespace {

constexpr std::size_t kAnchorsKept = 1024;
// Below it the rate between two anchors says more about reading clocks than about their rates.
constexpr std::int64_t kShortestSpan = 1'000'000;

bool has_steady_counter() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
#else
  return false;
#endif
}

}  // namespace

const bool kTicksAreCycles = has_steady_counter();

TickAnchor TickAnchor::read() {
  TickAnchor best;
  Ticks narrowest = std::numeric_limits<Ticks>::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Ticks before = ticks_now();
    const std::int64_t nanos = steady_nanos();
    const Ticks width = ticks_now() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    best = {before + width / 2, nanos};
  }
  return best;
}

void TickScale::add(TickAnchor anchor) {
  // A pair that is too close together has no rate; the later one says more.
  if (anchors_.size() > 1 && anchor.nanos - anchors_.back().nanos < kShortestSpan)
    anchors_.pop_back();
  anchors_.push_back(anchor);
  if (anchors_.size() <= kAnchorsKept) return;
  std::size_t kept = 0;
  for (std::size_t index = 0; index < anchors_.size(); index += 2)
    anchors_[kept++] = anchors_[index];
  anchors_.resize(kept);
}

std::int64_t TickScale::nanos(Ticks ticks) const {
  if (!kTicksAreCycles || anchors_.size() < 2) return static_cast<std::int64_t>(ticks);
  auto after = std::lower_bound(
      anchors_.begin(), anchors_.end(), ticks,
      [](const TickAnchor& anchor, Ticks wanted) { return anchor.ticks < wanted; });
  after = std::clamp(after, anchors_.begin() + 1, anchors_.end() - 1);
  const TickAnchor& a = *(after - 1);
  const TickAnchor& b = *after;
  const auto since = static_cast<double>(static_cast<std::int64_t>(ticks - a.ticks));
  const double rate =
      static_cast<double>(b.nanos - a.nanos) / static_cast<double>(b.ticks - a.ticks);
  return a.nanos + static_cast<std::int64_t>(since * rate);
}

}  // namespace gradring
