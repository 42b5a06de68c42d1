// The layout of the segment of a host's ranks: what is in use at one time lies nowhere twice, and
// what is written again lies where no core has it in a cache of its own.
#include "collectives/flat/flat_memory.h"

#include <doctest/doctest.h>

#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace gradring::testing::flat_memory_test {
namespace {

using collectives::FlatMemory;

constexpr Rank kRanks[] = {2, 3, 4, 5, 7, 16, 64};
constexpr std::size_t kSizes[] = {473, 1024, 4095, 4096, 5000, 16384, 20000, 32768};

FlatMemory memory_of(Rank ranks, bool shares_processors = false, bool core_lines_are_slow = true) {
  auto memory = transport::SharedMemory::create(FlatMemory::bytes(ranks));
  FlatMemory::lay_out(memory, {.shares_processors = shares_processors ? 1u : 0u,
                               .core_lines_are_slow = core_lines_are_slow ? 1u : 0u});
  return FlatMemory(std::move(memory), ranks);
}

// Of every layout: payloads spread over all places, and in few; with processors for all, and not.
std::vector<FlatMemory> memories_of(Rank ranks) {
  std::vector<FlatMemory> all;
  for (const bool shares_processors : {true, false})
    for (const bool core_lines_are_slow : {true, false})
      all.push_back(memory_of(ranks, shares_processors, core_lines_are_slow));
  return all;
}

struct Range {
  const std::byte* begin;
  std::size_t bytes;
  bool overlaps(const Range& other) const {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

// Over the point where the number of an operation begins anew.
void payloads_lie_apart(const FlatMemory& memory, Rank last) {
  for (const Rank rank : {0, last}) {
    std::vector<Range> recent;
    std::uint32_t size = 0;
    for (std::uint32_t round = 0u - 300; round != 300; ++round) {
      size = (size + 1 + round % 3) % std::size(kSizes);
      const Range range{memory.payload(rank, round, kSizes[size]), kSizes[size]};
      bool is_apart = true;
      for (const Range& other : recent) is_apart &= !range.overlaps(other);
      REQUIRE(is_apart);
      recent.push_back(range);
      if (recent.size() == memory.turn_of(kSizes[0])) recent.erase(recent.begin());
    }
  }
}

TEST_CASE("payloads of operations that may be in use together lie apart, whatever their sizes") {
  for (const Rank ranks : kRanks) {
    CAPTURE(ranks);
    for (const FlatMemory& memory : memories_of(ranks)) payloads_lie_apart(memory, ranks - 1);
  }
}

void payloads_stay_inside(const FlatMemory& memory, Rank rank, Rank ranks) {
  const std::byte* const first = memory.payload(rank, 0, 1024);
  const bool is_last = rank + 1 == ranks;
  const std::byte* const next = is_last ? memory.slot(0, 0, 1) : memory.payload(rank + 1, 0, 1024);
  bool is_inside = true;
  for (std::uint32_t round = 0; round < 600; ++round) {
    for (const std::size_t bytes : kSizes) {
      const std::byte* const begin = memory.payload(rank, round, bytes);
      is_inside &= begin >= first && begin + bytes <= next;
    }
  }
  CHECK(is_inside);
}

TEST_CASE("a payload stays where its rank's lie") {
  for (const Rank ranks : kRanks) {
    CAPTURE(ranks);
    for (const FlatMemory& memory : memories_of(ranks))
      for (Rank rank = 0; rank < ranks; ++rank) payloads_stay_inside(memory, rank, ranks);
  }
}

std::set<const std::byte*> payload_places(const FlatMemory& memory) {
  std::set<const std::byte*> places;
  for (std::uint32_t round = 0; round < 128; ++round)
    places.insert(memory.payload(1, round, 16384));
  return places;
}

TEST_CASE("payloads of 16 KiB come again after 2 MiB, or stay in as many places as are in use") {
  CHECK(payload_places(memory_of(2)).size() == 128);
  CHECK(payload_places(memory_of(2, false, false)).size() == FlatMemory::kPayloads);
  CHECK(payload_places(memory_of(4, true, false)).size() == FlatMemory::kPosts);
}

TEST_CASE("whatever another process wrote for a layout is one of those that are") {
  for (const std::uint32_t word : {0u, 1u, 9u, ~0u}) {
    auto memory = transport::SharedMemory::create(FlatMemory::bytes(64));
    FlatMemory::lay_out(memory, {.shares_processors = word, .core_lines_are_slow = word});
    payloads_lie_apart(FlatMemory(std::move(memory), 64), 63);
  }
}

TEST_CASE("pieces of long operations come again after 4 MiB") {
  const FlatMemory memory = memory_of(2);
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
