// Which way long all_gathers and broadcasts go, as told how long each took: the faster one, found
// again when it changes, for a small share of the time.
#include "collectives/flat/flat_ways.h"

#include <doctest/doctest.h>

#include <cstddef>

namespace gradring::testing::flat_ways_test {
namespace {

using collectives::FlatWays;

constexpr std::size_t kSlotsBytes = std::size_t{4} << 20;
constexpr std::size_t kBytes = 256 * 1024;
constexpr std::size_t kTurns = kSlotsBytes / kBytes + 2 * FlatWays::kTurn + 2;  // One of each.

// A rank whose word decides, and how long either way takes it.
struct Decider {
  FlatWays ways{false, kSlotsBytes};
  OpKind op = OpKind::kAllGather;
  std::size_t bytes = kBytes;
  Ticks direct = 1000;
  Ticks slots = 1000;

  // Whether it was direct. `late`: something else had the core meanwhile.
  bool run_one(Ticks late = 0) {
    const bool is_direct = ways.is_direct(op, bytes);
    const bool word = ways.wants_direct(op, bytes);
    ways.note(op, bytes, is_direct, (is_direct ? direct : slots) + late);
    ways.hear(op, bytes, word);
    return is_direct;
  }
  // How many of `times` were direct.
  std::size_t run(std::size_t times) {
    std::size_t directs = 0;
    for (std::size_t nth = 0; nth < times; ++nth) directs += run_one() ? 1 : 0;
    return directs;
  }
};

TEST_CASE("flat ways: after a turn of each, the faster way is taken for nearly all operations") {
  for (const bool direct_is_faster : {true, false}) {
    Decider decider;
    decider.direct = direct_is_faster ? 900 : 1100;
    // One slow operation proves nothing.
    CHECK(decider.run_one(50'000));
    decider.run(kTurns);
    constexpr std::size_t kTimes = 100'000;
    const std::size_t directs = decider.run(kTimes);
    const std::size_t others = direct_is_faster ? kTimes - directs : directs;
    CHECK(others > 0);
    CHECK(others < kTimes / 100);
  }
}

TEST_CASE("flat ways: where the way in use gets slow, the other one is found within a few turns") {
  for (const bool direct_is_faster : {true, false}) {
    Decider decider;
    Ticks& used = direct_is_faster ? decider.direct : decider.slots;
    used = 500;
    decider.run(1000);
    used = 4000;
    decider.run(2 * kTurns);
    const std::size_t directs = decider.run(100);
    CHECK(directs == (direct_is_faster ? 0 : 100));
  }
}

TEST_CASE("flat ways: where the other way gets fast, it is found after some thousand operations") {
  Decider decider;
  decider.direct = 500;
  decider.run(20'000);
  decider.slots = 100;
  std::size_t until = 0;
  while (decider.run_one() && until < 20'000) ++until;
  CHECK(until < 256 * kTurns * 2);
  decider.run(2 * kTurns);
  CHECK(decider.run(100) == 0);
}

TEST_CASE("flat ways: a turn through the slots goes around all of them, and is one for long ones") {
  Decider decider;
  decider.direct = 500;
  for (std::size_t nth = 0; nth < kSlotsBytes / kBytes; ++nth) {
    decider.slots = 600;  // Lines that are in no cache yet.
    while (decider.run_one()) {
    }
  }
  decider.slots = 400;
  decider.run(2 * FlatWays::kTurn);
  CHECK(decider.run(20) == 0);

  Decider long_one{.bytes = FlatWays::kLongBytes};
  long_one.direct = 2000;
  CHECK(long_one.run(100) <= 4);
}

TEST_CASE("flat ways: the slots come first where they are nearly always faster") {
  Decider gather{.bytes = FlatWays::kSlotsFirstGatherBytes};
  CHECK_FALSE(gather.run_one());
  Decider broadcast{.op = OpKind::kBroadcast, .bytes = FlatWays::kSlotsFirstBroadcastBytes};
  CHECK_FALSE(broadcast.run_one());
  // Each kind and length for itself.
  gather.bytes = kBytes;
  CHECK(gather.run_one());
}

}  // namespace
}  // namespace gradring::testing::flat_ways_test
