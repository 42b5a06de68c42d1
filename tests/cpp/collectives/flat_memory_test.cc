// The layout of the segment of a host's ranks: what is in use at one time lies nowhere twice, and
// what is written again lies where no core has it in a cache of its own.
#include "collectives/flat/flat_memory.h"

#include <doctest/doctest.h>

#include <iterator>
#include <set>
#include <vector>

namespace gradring::testing::flat_memory_test {
namespace {

using collectives::FlatMemory;

constexpr Rank kRanks[] = {2, 3, 4, 5, 7, 16, 64};
constexpr std::size_t kSizes[] = {473, 1024, 4095, 4096, 5000, 16384, 20000, 32768};

FlatMemory memory_of(Rank ranks) {
  return FlatMemory(transport::SharedMemory::create(FlatMemory::bytes(ranks)), ranks);
}

struct Range {
  const std::byte* begin;
  std::size_t bytes;
  bool overlaps(const Range& other) const {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

TEST_CASE("payloads of operations that may be in use together lie apart, whatever their sizes") {
  for (const Rank ranks : kRanks) {
    CAPTURE(ranks);
    const FlatMemory memory = memory_of(ranks);
    for (const Rank rank : {0, ranks - 1}) {
      std::vector<Range> recent;
      std::uint32_t size = 0;
      // Over the point where the number of an operation begins anew.
      for (std::uint32_t round = 0u - 300; round != 300; ++round) {
        size = (size + 1 + round % 3) % std::size(kSizes);
        const Range range{memory.payload(rank, round, kSizes[size]), kSizes[size]};
        bool is_apart = true;
        for (const Range& other : recent) is_apart &= !range.overlaps(other);
        REQUIRE(is_apart);
        recent.push_back(range);
        if (recent.size() == FlatMemory::turn_of(kSizes[0])) recent.erase(recent.begin());
      }
    }
  }
}

TEST_CASE("a payload stays where its rank's lie") {
  for (const Rank ranks : kRanks) {
    CAPTURE(ranks);
    const FlatMemory memory = memory_of(ranks);
    const std::byte* const end = memory.slot(0, 0, 1);
    for (Rank rank = 0; rank < ranks; ++rank) {
      const std::byte* const first = memory.payload(rank, 0, 1024);
      const std::byte* const next = rank + 1 < ranks ? memory.payload(rank + 1, 0, 1024) : end;
      bool is_inside = true;
      for (std::uint32_t round = 0; round < 600; ++round) {
        for (const std::size_t bytes : kSizes) {
          const std::byte* const begin = memory.payload(rank, round, bytes);
          is_inside &= begin >= first && begin + bytes <= next;
        }
      }
      CHECK(is_inside);
    }
  }
}

TEST_CASE("payloads of 16 KiB between few ranks come again after 2 MiB, and pieces after 4") {
  const FlatMemory memory = memory_of(2);
  std::set<const std::byte*> payloads;
  for (std::uint32_t round = 0; round < 128; ++round)
    payloads.insert(memory.payload(1, round, 16384));
  CHECK(payloads.size() == 128);
  std::set<const std::byte*> pieces;
  for (std::uint32_t step = 0; step < 64; ++step) pieces.insert(memory.slot(1, step, 65536));
  CHECK(pieces.size() == 64);
}

TEST_CASE("pieces lie within their slots, and entries apart from each other") {
  for (const Rank ranks : kRanks) {
    CAPTURE(ranks);
    const FlatMemory memory = memory_of(ranks);
    for (std::uint32_t slots = 1; slots <= FlatMemory::kSlots / 2; slots *= 2) {
      const std::size_t room = memory.entry_bytes() * slots;
      for (const std::size_t bytes : {std::size_t{1}, room / 3, room / 2, room - 1, room}) {
        bool is_right = true;
        for (std::uint32_t step = 0; step < 20 * FlatMemory::kSlots; step += slots) {
          const std::byte* const slot = memory.slot(1, step % FlatMemory::kSlots, room * 2);
          for (Rank index = 0; index < ranks; ++index) {
            const std::byte* const at = memory.entry(1, step, index, {slots, bytes});
            const std::byte* const begin = slot + static_cast<std::size_t>(index) * room;
            is_right &= at >= begin && at + bytes <= begin + room;
          }
        }
        CHECK(is_right);
      }
    }
  }
}

}  // namespace
}  // namespace gradring::testing::flat_memory_test
