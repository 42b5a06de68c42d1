// Which way long all_gathers and broadcasts go, as told how long each took: the faster one, found
// again when it changes, for a small share of the time.
#include "collectives/flat/flat_ways.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>

namespace gradring::testing::flat_ways_test {
namespace {

using collectives::FlatWay;
using collectives::FlatWays;

constexpr std::size_t kSlotsBytes = std::size_t{4} << 20;
constexpr FlatWays::Slots kSlots{.bytes = kSlotsBytes, .cached_bytes = kSlotsBytes, .ranks = 1};
constexpr std::size_t kBytes = 256 * 1024;
constexpr std::size_t kSlotsTurn = kSlotsBytes / kBytes + FlatWays::kTurn;
constexpr std::size_t kTurns = 3 * kSlotsTurn + FlatWays::kTurn + 4;  // One of each.

// A rank whose word decides, and how long each way takes it.
struct Decider {
  FlatWays ways{false, kSlots};
  OpKind op = OpKind::kAllGather;
  std::size_t bytes = kBytes;
  bool may_read = true;
  Ticks slots = 1000;
  Ticks past = 1000;
  Ticks read = 1000;
  Ticks cached = 1000;

  // Which way it went. `late`: something else had the core meanwhile.
  FlatWay run_one(Ticks late = 0) {
    ways.begin(op, bytes);
    const FlatWay way = ways.way(op, bytes, may_read);
    const FlatWay word = ways.wants(op, bytes, may_read);
    ways.note(op, bytes, way, time_of(way) + late);
    ways.hear(op, bytes, word);
    return way;
  }
  // How many of `times` went that way.
  std::size_t run(std::size_t times, FlatWay counted = FlatWay::kRead) {
    std::size_t count = 0;
    for (std::size_t nth = 0; nth < times; ++nth) count += run_one() == counted ? 1 : 0;
    return count;
  }
  Ticks& time_of(FlatWay way) {
    switch (way) {
      case FlatWay::kSlots: return slots;
      case FlatWay::kSlotsPast: return past;
      case FlatWay::kRead: return read;
      default: return cached;
    }
  }
};

constexpr std::array kAll{FlatWay::kSlots, FlatWay::kSlotsPast, FlatWay::kRead,
                          FlatWay::kSlotsCached};

TEST_CASE("flat ways: after a turn of each, the fastest is taken for nearly all operations") {
  for (const FlatWay fastest : kAll) {
    Decider decider;
    decider.time_of(fastest) = 800;
    // One slow operation proves nothing.
    CHECK(decider.run_one(50'000) == FlatWay::kRead);
    decider.run(kTurns);
    constexpr std::size_t kTimes = 100'000;
    const std::size_t others = kTimes - decider.run(kTimes, fastest);
    CHECK(others > 0);
    CHECK(others < kTimes / 50);
  }
}

TEST_CASE("flat ways: where the way in use gets slow, the best other one is found in a few turns") {
  for (const FlatWay used : kAll) {
    Decider decider;
    decider.time_of(used) = 500;
    const FlatWay second = used == FlatWay::kSlotsPast ? FlatWay::kSlots : FlatWay::kSlotsPast;
    decider.time_of(second) = 700;
    decider.run(1000);
    decider.time_of(used) = 4000;
    decider.run(2 * kTurns);
    CHECK(decider.run(100, second) == 100);
  }
}

TEST_CASE("flat ways: where another way gets fast, it is found after some thousand operations") {
  for (const FlatWay found : {FlatWay::kSlots, FlatWay::kSlotsPast, FlatWay::kSlotsCached}) {
    Decider decider;
    decider.read = 500;
    decider.run(20'000);
    decider.time_of(found) = 100;
    std::size_t until = 0;
    while (decider.run_one() != found && until < 100'000) ++until;
    CHECK(until < 3 * FlatWays::kMostPatience * kSlotsTurn);
    decider.run(2 * kTurns);
    CHECK(decider.run(10'000, found) > 9'800);
  }
}

TEST_CASE("flat ways: a little faster is not worth a change, nor is one slow turn of a long one") {
  Decider decider;
  decider.op = OpKind::kAllReduce;
  decider.may_read = false;
  decider.past = 950;
  decider.run(kTurns);
  CHECK(decider.run(100, FlatWay::kSlots) == 100);

  Decider long_one;
  long_one.bytes = FlatWays::kLongBytes;
  long_one.read = 2000;
  long_one.past = 1300;
  long_one.cached = 1300;
  long_one.run(FlatWays::kWays * (FlatWays::kLongTurn + 1));
  REQUIRE(long_one.run_one() == FlatWay::kSlots);
  long_one.run_one(1000);
  CHECK(long_one.run(8, FlatWay::kSlots) == 8);
}

TEST_CASE(
    "flat ways: a turn through the slots goes around all of them, and is short for long ones") {
  Decider decider;
  decider.op = OpKind::kAllReduce;
  decider.may_read = false;
  decider.past = 600;
  decider.slots = 900;  // Lines that are in no cache yet.
  decider.run(kSlotsBytes / kBytes);
  decider.slots = 500;
  decider.run(kTurns);
  CHECK(decider.run(100, FlatWay::kSlots) == 100);

  Decider long_one;
  long_one.bytes = FlatWays::kLongBytes;
  long_one.read = 2000;
  CHECK(long_one.run(60) <= FlatWays::kLongTurn + 1);
}

// Until another way is asked for.
std::size_t first_turn(Decider decider) {
  const FlatWay first = decider.ways.way(decider.op, decider.bytes, decider.may_read);
  std::size_t operations = 0;
  while (decider.run_one() == first) ++operations;
  return operations - 1;  // What is wanted at the end of one is heard in the next.
}

TEST_CASE("flat ways: a broadcast goes around the slots of its root, little of them by little") {
  const FlatWays::Slots slots{.bytes = 16 * kBytes, .cached_bytes = 2 * kBytes, .ranks = 4};
  CHECK(first_turn({.ways{true, slots}}) == 4 * 16 + FlatWays::kTurn);
  Decider broadcast{.ways{true, slots}, .op = OpKind::kBroadcast, .may_read = false};
  CHECK(first_turn(broadcast) == 16 + FlatWays::kTurn);
  broadcast.run(16 + FlatWays::kTurn + 1);
  CHECK(broadcast.run(2 + FlatWays::kTurn + 1, FlatWay::kSlotsCached) == 2 + FlatWays::kTurn + 1);
  CHECK(broadcast.run(16, FlatWay::kSlotsPast) == 16);
}

// Every other operation finds all that it needs, and takes a tenth of the others.
TEST_CASE("flat ways: of a root that is ahead all operations count, but for one of a turn") {
  for (const bool shares_processors : {true, false}) {
    Decider decider{.ways{shares_processors, kSlots}, .op = OpKind::kBroadcast, .may_read = false};
    decider.cached = 800;
    for (std::size_t nth = 0; nth < 4 * kSlotsTurn; ++nth) {
      decider.slots = decider.past = nth % 2 == 0 ? 1900 : 190;
      decider.run_one(nth == 7 ? 1000000 : 0);
    }
    const FlatWay best = shares_processors ? FlatWay::kSlotsCached : FlatWay::kSlots;
    CHECK(decider.run(20, best) == 20);
  }
}

TEST_CASE(
    "flat ways: reading comes first but for lengths at which slots are nearly always faster") {
  Decider gather;
  CHECK(gather.run_one() == FlatWay::kRead);
  gather.bytes = FlatWays::kSlotsFirstGatherBytes;
  CHECK(gather.run_one() == FlatWay::kSlots);
  Decider broadcast;
  broadcast.op = OpKind::kBroadcast;
  broadcast.bytes = FlatWays::kSlotsFirstBroadcastBytes;
  CHECK(broadcast.run_one() == FlatWay::kSlots);
  Decider shares{.ways{true, kSlots}};
  CHECK(shares.run_one() == FlatWay::kSlots);
}

TEST_CASE("flat ways: reductions do not go through a little of the slots") {
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
    Decider decider;
    decider.op = op;
    decider.may_read = false;
    decider.cached = 100;
    CHECK(decider.run(1000, FlatWay::kSlotsCached) == 0);
  }
}

TEST_CASE("flat ways: a long one begins with what a shorter one has found out") {
  for (const FlatWay fastest : kAll) {
    Decider decider;
    decider.bytes = FlatWays::kLongBytes >> FlatWays::kDonorBits;
    decider.time_of(fastest) = 500;
    decider.run(2 * kTurns);
    decider.bytes = FlatWays::kLongBytes;
    for (const FlatWay way : kAll) decider.time_of(way) <<= FlatWays::kDonorBits;
    CHECK(decider.run(100, fastest) == 100);
    // It was a guess: where it is wrong that is found out.
    decider.time_of(fastest) *= 10;
    decider.run(2 * kTurns);
    CHECK(decider.run(100, fastest) == 0);
  }
  // Not with what a longer one has, or one that is much shorter, or another operation.
  Decider decider;
  decider.bytes = FlatWays::kLongBytes;
  decider.cached = 100;
  decider.run(2 * kTurns);
  REQUIRE(decider.run_one() == FlatWay::kSlotsCached);
  decider.bytes = FlatWays::kLongBytes << (FlatWays::kDonorBits + 1);
  CHECK(decider.run_one() == FlatWay::kSlots);
  decider.op = OpKind::kBroadcast;
  CHECK(decider.run_one() == FlatWay::kSlots);
  // Nor does one that is not long.
  Decider shorter;
  shorter.cached = 100;
  shorter.run(2 * kTurns);
  REQUIRE(shorter.run_one() == FlatWay::kSlotsCached);
  shorter.bytes = 2 * kBytes;
  CHECK(shorter.run_one() == FlatWay::kRead);
}

TEST_CASE("flat ways: a rank that may not read never asks for it") {
  Decider decider;
  decider.read = 500;
  decider.run(2 * kTurns);
  REQUIRE(decider.run_one() == FlatWay::kRead);
  decider.may_read = false;
  decider.run(1);
  CHECK(decider.run(1000) == 0);
}

}  // namespace
}  // namespace gradring::testing::flat_ways_test
