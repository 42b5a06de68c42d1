// Memory of done payloads is used again, and never more of it than is allowed.
#include "ps/shard/spares.h"

#include <doctest/doctest.h>

namespace gradring::testing::spares_test {
namespace {

using ps::Spares;

constexpr std::size_t kPart = std::size_t{256} << 10;

TEST_CASE("what was given last is taken first, empty") {
  Spares spares;
  Bytes first(kPart);
  Bytes second(kPart);
  const std::byte* const memory = second.data();
  spares.give(std::move(first));
  spares.give(std::move(second));
  Bytes taken = spares.take(kPart);
  CHECK(taken.empty());
  taken.resize(kPart);
  CHECK(taken.data() == memory);
  CHECK(spares.bytes() == kPart);
}

TEST_CASE("spare memory is neither too small nor much too large for what it is taken for") {
  Spares spares;
  spares.give(Bytes(kPart));
  CHECK(spares.take(kPart + 1).capacity() == 0);
  CHECK(spares.take(kPart / 2 - 1).capacity() == 0);
  CHECK(spares.take(0).capacity() == 0);
  CHECK(spares.take(kPart / 2).capacity() == kPart);
  CHECK(spares.bytes() == 0);
}

TEST_CASE("the oldest spare memory goes when there is too much") {
  Spares spares;
  constexpr std::size_t kMost = limits::kPsSpareBytes / kPart;
  const std::byte* second = nullptr;
  for (std::size_t nth = 0; nth < kMost + 1; ++nth) {
    Bytes bytes(kPart);
    if (nth == 1) second = bytes.data();
    spares.give(std::move(bytes));
    CHECK(spares.bytes() <= limits::kPsSpareBytes);
  }
  Bytes last;
  for (std::size_t nth = 0; nth < kMost; ++nth) last = spares.take(kPart);
  CHECK(last.data() == second);
  CHECK(spares.take(kPart).capacity() == 0);
  spares.give(Bytes(limits::kPsSpareBytes + 1));
  CHECK(spares.bytes() == 0);
}

}  // namespace
}  // namespace gradring::testing::spares_test
