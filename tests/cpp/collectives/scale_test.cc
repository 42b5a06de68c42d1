// What a rank does and keeps in a world of a thousand grows as docs/scale.md says. Simulated time
// only: nothing here waits.
#include "sim/scale/scale.h"

#include <doctest/doctest.h>

#include "sim/scale/start_up.h"

namespace gradring::sim::scale_test {
namespace {

using collectives::Algorithm;
using collectives::Order;

constexpr std::uint64_t kMiB = 1 << 20;

ScaleCase case_of(OpKind op, Rank ranks, std::uint64_t bytes, Algorithm algorithm) {
  ScaleCase c;
  c.op = op;
  c.ranks = ranks;
  c.bytes = bytes;
  c.algorithm = algorithm;
  return c;
}

TEST_CASE("1,024 ranks: log2(n) steps and connections for small collectives, twice that to halve") {
  const auto hops = [](OpKind op, std::uint64_t bytes, Algorithm algorithm) {
    const ScaleWorld world(case_of(op, 1024, bytes, algorithm));
    CHECK(world.most().peers <= 2 * 10);
    return world.hops();
  };
  CHECK(hops(OpKind::kBarrier, 0, Algorithm::kDoubling) == 10);
  CHECK(hops(OpKind::kAllReduce, 4, Algorithm::kDoubling) == 10);
  CHECK(hops(OpKind::kAllGather, 4096, Algorithm::kDoubling) == 10);
  CHECK(hops(OpKind::kBroadcast, 4, Algorithm::kDoubling) == 10);
  CHECK(hops(OpKind::kAllReduce, 65536, Algorithm::kHalving) == 20);
}

TEST_CASE("halving starts a column of a long vector in each step, not after the one before") {
  ScaleCase c = case_of(OpKind::kAllReduce, 64, 16 * kMiB, Algorithm::kHalving);
  c.order = Order::kTree;
  constexpr std::uint64_t kColumns = 32;
  CHECK(ScaleWorld(c).hops() == 2 * 6 + kColumns - 1);
}

TEST_CASE("a ring passes on each byte once each way, over two links besides those of agreeing") {
  ScaleCase c = case_of(OpKind::kAllReduce, 256, kMiB, Algorithm::kRing);
  c.order = Order::kRing;
  const ScaleWorld world(c);
  // The last of the 8 rounds in which all agree is the one in which the first sums are made.
  CHECK(world.hops() == 2 * 255 + 7);
  CHECK(world.most().sent_bytes == bound_of(c, {}).sent_bytes + 8);
  CHECK(world.most().peers <= 2 * 8);
  CHECK(world.most().scratch_bytes < kMiB / 64);
}

TEST_CASE("what the planner picks for 4,096 ranks keeps scratch and plans small") {
  for (const std::uint64_t bytes : {std::uint64_t{4}, 16 * kMiB, 256 * kMiB}) {
    ScaleCase c = case_of(OpKind::kAllReduce, 4096, bytes, Algorithm::kAuto);
    c.algorithm = choose(request_of(c, 0), collectives::loopback_costs());
    const RankLoad load = load_of(plans_of(c, 4095));
    CHECK(load.peers <= 2 * 12 + 2);
    CHECK(load.scratch_bytes <= 4 * kMiB);
    CHECK(load.plan_bytes <= 16 * kMiB);
  }
}

TEST_CASE("thousands of ranks get the right sums, in a simulated time that the seed decides") {
  NetworkModel model;
  model.jitter = 0.5;
  const ScaleCase c = case_of(OpKind::kAllReduce, 1000, 4 * 1003, Algorithm::kHalving);
  double first = 0;
  double again = 0;
  CHECK(wrong_result(c, model, &first) == "");
  CHECK(wrong_result(c, model, &again) == "");
  CHECK(first == again);
  model.seed = 2;
  CHECK(wrong_result(c, model, &again) == "");
  CHECK(first != again);
}

TEST_CASE("nothing that rank 0 sends grows faster than with the square of the world") {
  const std::vector<Phase> small = count_start_up(64);
  const std::vector<Phase> large = count_start_up(256);
  for (std::size_t i = 0; i < small.size(); ++i) {
    CAPTURE(large[i].name);
    CHECK(large[i].bytes <= 18 * small[i].bytes);
    CHECK(large[i].messages <= 18 * small[i].messages);
  }
  CHECK(large[1].messages == 255);  // A heartbeat: one message a rank, and short ones.
  CHECK(large[1].bytes <= 5 * small[1].bytes);
}

}  // namespace
}  // namespace gradring::sim::scale_test
