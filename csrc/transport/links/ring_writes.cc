#include "transport/links/ring_writes.h"

#include <algorithm>

namespace gradring::transport {

void RingWrites::note(std::size_t bytes, Ticks took) {
  constexpr Ticks kMiB = Ticks{1} << 20;
  const Ticks pace = std::max(took * kMiB / bytes, Ticks{1});
  fastest_ = fastest_ == 0 ? pace : std::min(fastest_, pace);
  in_mode_ += bytes;
  in_window_ += bytes;
  since_probe_ += bytes;
  const std::uint64_t window = mode_ == Mode::kProbe ? kProbeBytes : kWindowBytes;
  if (in_window_ >= window) end_window();
}

void RingWrites::end_window() {
  const Ticks fastest = fastest_;
  in_window_ = 0;
  fastest_ = 0;
  const auto is_far = [this] { return past_ != 0 && cached_ > kFarRatio * past_; };
  switch (mode_) {
    case Mode::kSettling:
      if (in_mode_ >= kSettlingBytes) enter(Mode::kCached);
      break;
    case Mode::kCached:
      cached_ = fastest;
      if (since_probe_ >= kUntilProbeBytes)
        enter(Mode::kProbe);
      else if (is_far())
        enter(Mode::kPast);
      break;
    case Mode::kProbe:
      past_ = fastest;
      since_probe_ = 0;
      enter(is_far() ? Mode::kPast : Mode::kCached);
      break;
    case Mode::kPast:
      past_ = fastest;
      since_probe_ = 0;
      if (in_mode_ >= kUntilReturnBytes) enter(Mode::kSettling);
      break;
  }
}

void RingWrites::enter(Mode mode) {
  mode_ = mode;
  in_mode_ = 0;
}

}  // namespace gradring::transport
