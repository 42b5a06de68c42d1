// Into the caches or past them, as told how long writes into a ring took: past them only where the
// reader's core is far, and back when it is near again.
#include "transport/links/ring_writes.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

namespace gradring::testing::ring_writes_test {
namespace {

using transport::RingWrites;

constexpr std::size_t kWrite = 32 * 1024;

// A writer that takes so many ticks a byte.
struct Writer {
  RingWrites writes;
  Ticks cached = 2;
  Ticks past = 1;

  // How many of so many bytes went past the caches.
  std::uint64_t write(std::uint64_t bytes, Ticks late = 0) {
    std::uint64_t count = 0;
    for (std::uint64_t at = 0; at < bytes; at += kWrite) {
      const bool goes_past = writes.goes_past();
      if (goes_past) count += kWrite;
      writes.note(kWrite, (goes_past ? past : cached) * kWrite + late);
    }
    return count;
  }
};

constexpr std::uint64_t kSome = std::uint64_t{64} << 20;
constexpr std::uint64_t kMany = std::uint64_t{2} << 30;

TEST_CASE("ring writes: near, they go into the caches, but for a look at the other way") {
  Writer near;
  const std::uint64_t past = near.write(kMany);
  CHECK(past > 0);
  CHECK(past < kMany / 500);
}

TEST_CASE("ring writes: far, they go past the caches, but for a look at the other way") {
  Writer far;
  far.cached = 12;
  CHECK(far.write(kSome) > kSome * 9 / 10);
  CHECK(kMany - far.write(kMany) < kMany / 100);
}

TEST_CASE("ring writes: a reader that moves away, and comes back, is noticed") {
  Writer writer;
  writer.write(kSome * 3 / 2);
  REQUIRE_FALSE(writer.writes.goes_past());
  writer.cached = 12;
  writer.write(2 * RingWrites::kWindowBytes);
  CHECK(writer.writes.goes_past());
  writer.cached = 2;
  writer.write(RingWrites::kUntilReturnBytes + 2 * RingWrites::kSettlingBytes);
  CHECK(writer.write(kSome) <= RingWrites::kProbeBytes);
}

TEST_CASE("ring writes: one that was interrupted says nothing about the reader") {
  Writer writer;
  writer.write(kSome / 2);
  for (int nth = 0; nth < 100; ++nth) {
    writer.write(kWrite, 1'000'000);
    writer.write(RingWrites::kWindowBytes - kWrite);
  }
  CHECK(writer.write(RingWrites::kWindowBytes) <= RingWrites::kProbeBytes);
}

TEST_CASE("ring writes: pages that the kernel has to find say nothing about the reader") {
  Writer writer;
  writer.cached = writer.past = 8;
  CHECK(writer.write(limits::kRingBytes) == 0);
  writer.cached = 12;
  writer.past = 1;
  CHECK(writer.write(kSome) > kSome * 9 / 10);
}

// A ring that was written past the caches is cheap to write, until the reader has it in its caches.
TEST_CASE("ring writes: the first time around after a return does not count") {
  Writer writer;
  writer.cached = 12;
  writer.write(RingWrites::kUntilReturnBytes);
  while (writer.writes.goes_past()) writer.write(kWrite);
  writer.cached = 1;
  writer.write(limits::kRingBytes);
  writer.cached = 12;
  writer.write(2 * RingWrites::kWindowBytes + RingWrites::kProbeBytes);
  CHECK(writer.writes.goes_past());
}

}  // namespace
}  // namespace gradring::testing::ring_writes_test
