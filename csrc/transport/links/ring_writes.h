// RingWrites: whether what goes into a ring of shared memory is written into the caches or past
// them. The reader has the ring's lines in its core's caches. Where both cores share a cache, that
// costs the writer little, and the reader finds what is new close by. Where they do not (cores of
// one large processor, or of a virtual machine that its host has moved apart), a writer waits for
// every line that it replaces, ten times as long as it takes to write past the caches
// (docs/decisions/0021-ways-are-compared-in-use.md). So the writer looks at its own pace: when it
// gets slow it goes past the caches, and from time to time it tries the other way again. Pure: it
// is told how long writes took. Belongs to one link, on its driving thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/config.h"
#include "base/ticks.h"

namespace gradring::transport {

class RingWrites {
 public:
  // What is shorter is written into the caches, and says nothing about the pace.
  static constexpr std::size_t kLeastBytes = 4096;
  // The fastest write of so many bytes counts: something else may have the core in between.
  static constexpr std::uint64_t kWindowBytes = 256 << 10;
  // After so many the pace past the caches is measured again, by a few.
  static constexpr std::uint64_t kUntilProbeBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kProbeBytes = 64 << 10;
  // And into the caches: only once the whole ring is in the reader's caches again, so that it costs
  // as much as some ten times this ring.
  static constexpr std::uint64_t kUntilReturnBytes = std::uint64_t{512} << 20;
  static constexpr std::uint64_t kSettlingBytes = limits::kRingBytes + kWindowBytes;
  // A writer that is so many times as slow has a reader far away. Near, it is up to twice as slow,
  // and the reader twice as fast.
  static constexpr Ticks kFarRatio = 4;

  bool goes_past() const { return mode_ == Mode::kPast || mode_ == Mode::kProbe; }

  // A write of at least kLeastBytes is over.
  void note(std::size_t bytes, Ticks took);

 private:
  enum class Mode : std::uint8_t { kSettling, kCached, kProbe, kPast };

  void enter(Mode mode);
  void end_window();

  Mode mode_ = Mode::kCached;
  std::uint64_t in_mode_ = 0;    // Bytes.
  std::uint64_t in_window_ = 0;  // Bytes.
  // The first time around the ring costs the kernel's time for its pages.
  std::uint64_t since_probe_ = kUntilProbeBytes - limits::kRingBytes;
  Ticks fastest_ = 0;  // Of the window, per MiB; 0: none yet. The same:
  Ticks cached_ = 0;
  Ticks past_ = 0;  // 0: not known yet.
};

}  // namespace gradring::transport
