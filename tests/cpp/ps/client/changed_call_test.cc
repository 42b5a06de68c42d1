// Changed rows lie in the caller's memory, and nothing that a server answers is written beyond it.
#include "ps/client/changed_call.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace gradring::testing::changed_call_test {

namespace {

using namespace gradring::ps;

constexpr std::uint32_t kDim = 2;
constexpr std::size_t kRowBytes = sizeof(std::uint64_t) + kDim * sizeof(float);
constexpr std::array<std::uint64_t, 2> kSince{7, 8};

std::shared_ptr<RemoteTable> two_shards() {
  TableSpec spec;
  spec.name = "counts";
  spec.dim = kDim;
  return std::make_shared<RemoteTable>(spec, 2);
}

wire::PsHeader answer(std::uint32_t count, std::uint64_t since, bool more) {
  wire::PsHeader header;
  header.type = wire::PsType::kChanged;
  header.count = count;
  header.a = since;
  header.b = more ? 1 : 0;
  header.payload_bytes = count * kRowBytes;
  return header;
}

TEST_CASE("each shard is asked for half of what its share holds") {
  std::vector<std::byte> room(2 * 6 * kRowBytes + 9);
  ChangedCall call(two_shards(), kSince, room);
  REQUIRE(call.parts().size() == 2);
  CHECK(call.parts()[1].shard == 1);
  CHECK(call.parts()[1].header.a == 8);
  CHECK(call.parts()[1].header.b == 3);
}

TEST_CASE("pages are received in their shares, or copied there") {
  std::vector<std::byte> room(2 * 4 * kRowBytes);
  ChangedCall call(two_shards(), kSince, room);
  const std::span<std::byte> place = call.destination(1, answer(4, 20, true));
  REQUIRE(place.data() == room.data() + 4 * kRowBytes);
  REQUIRE(place.size() == 4 * kRowBytes);
  std::fill(place.begin(), place.end(), std::byte{5});
  call.take(1, answer(4, 20, true), place);
  call.take(0, answer(1, 10, false), std::vector<std::byte>(kRowBytes, std::byte{3}));
  CHECK(call.missing_share_bytes() == 0);
  CHECK(std::count(room.begin(), room.end(), std::byte{3}) == kRowBytes);
  CHECK(room.front() == std::byte{3});
  CHECK(std::count(room.begin(), room.end(), std::byte{5}) == 4 * kRowBytes);
  CHECK(call.pages()[0].count == 1);
  CHECK_FALSE(call.pages()[0].more);
  CHECK(call.pages()[1].since == 20);
  CHECK(call.pages()[1].more);
}

TEST_CASE("a page without room is dropped, and the call says what it would have taken") {
  std::vector<std::byte> room(2 * 4 * kRowBytes);
  ChangedCall call(two_shards(), kSince, room);
  CHECK(call.destination(0, answer(5, 20, false)).empty());
  call.take(0, answer(5, 20, false), std::vector<std::byte>(5 * kRowBytes, std::byte{3}));
  call.take(1, answer(0, 20, false), {});
  CHECK(std::count(room.begin(), room.end(), std::byte{0}) == std::ssize(room));
  CHECK(call.missing_share_bytes() >= 5 * kRowBytes);
}

TEST_CASE("answers that are none, and rooms for less than a row, are refused") {
  std::vector<std::byte> room(2 * 4 * kRowBytes);
  ChangedCall call(two_shards(), kSince, room);
  wire::PsHeader other = answer(1, 20, false);
  other.type = wire::PsType::kRows;
  CHECK(call.destination(0, other).empty());
  const std::vector<std::byte> row(kRowBytes);
  CHECK_THROWS_AS(call.take(0, other, row), ProtocolError);
  CHECK_THROWS_AS(call.take(0, answer(2, 20, false), row), ProtocolError);
  CHECK_THROWS_AS(ChangedCall(two_shards(), kSince, std::span(room).first(2 * kRowBytes - 1)),
                  InvalidArgument);
  CHECK_THROWS_AS(ChangedCall(two_shards(), std::span(kSince).first(1), room), InvalidArgument);
}

}  // namespace

}  // namespace gradring::testing::changed_call_test
