// The cost model: what it picks must agree with what was measured (4 ranks and 2 ranks on loopback
// TCP).
#include "collectives/plan/choose.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace gradring::collectives::choose_test {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

Request request_of(OpKind op, Rank n, std::uint64_t bytes, DType dtype = DType::kFloat32) {
  return {.op = op,
          .dtype = dtype,
          .world_size = n,
          .count = bytes / item_bytes(dtype),
          .counts = {},
          .recv_counts = {},
          .order = order_for(op, n, bytes, dtype)};
}

Algorithm over_loopback(OpKind op, Rank n, std::uint64_t bytes) {
  return choose(request_of(op, n, bytes), loopback_costs());
}

TEST_CASE(
    "choose: 4 ranks use recursive doubling up to 16 KiB, then halving, then direct or ring") {
  for (const std::uint64_t bytes : {std::uint64_t{4}, kKiB, 4 * kKiB, 16 * kKiB}) {
    CHECK(over_loopback(OpKind::kAllReduce, 4, bytes) == Algorithm::kDoubling);
  }
  CHECK(over_loopback(OpKind::kAllReduce, 4, 64 * kKiB) == Algorithm::kHalving);
  CHECK(over_loopback(OpKind::kAllReduce, 4, 128 * kKiB) == Algorithm::kHalving);
  CHECK(over_loopback(OpKind::kAllReduce, 4, kMiB) == Algorithm::kHalving);
  for (const std::uint64_t bytes : {4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    const Algorithm algorithm = over_loopback(OpKind::kAllReduce, 4, bytes);
    CHECK((algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing));
  }
}

TEST_CASE("choose: the measured ranking at 1 KiB and 64 KiB with 4 ranks is the model's") {
  const auto estimate = [](std::uint64_t bytes, Algorithm algorithm) {
    return estimate_us(request_of(OpKind::kAllReduce, 4, bytes), algorithm, loopback_costs());
  };
  const auto ranks_as = [&](std::uint64_t bytes, std::initializer_list<Algorithm> fastest_first) {
    for (auto a = fastest_first.begin(); a + 1 != fastest_first.end(); ++a) {
      CAPTURE(name(*a));
      CHECK(estimate(bytes, *a) < estimate(bytes, *(a + 1)));
    }
  };
  ranks_as(kKiB, {Algorithm::kDoubling, Algorithm::kGather, Algorithm::kHalving, Algorithm::kDirect,
                  Algorithm::kRing});
  ranks_as(64 * kKiB,
           {Algorithm::kHalving, Algorithm::kDoubling, Algorithm::kDirect, Algorithm::kRing});
  CHECK(estimate(64 * kKiB, Algorithm::kGather) > estimate(64 * kKiB, Algorithm::kDirect));
}

TEST_CASE("choose: 2 ranks exchange whole vectors up to 64 KiB and halves of large ones") {
  CHECK(over_loopback(OpKind::kAllReduce, 2, 4) == Algorithm::kGather);
  CHECK(over_loopback(OpKind::kAllReduce, 2, 64 * kKiB) == Algorithm::kGather);
  for (const std::uint64_t bytes : {kMiB, 16 * kMiB}) {
    const Algorithm algorithm = over_loopback(OpKind::kAllReduce, 2, bytes);
    CHECK((algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing));
  }
}

TEST_CASE("choose: a link with more latency keeps to few steps for longer") {
  const Request request = request_of(OpKind::kAllReduce, 4, 64 * kKiB);
  CHECK(choose(request, loopback_costs()) == Algorithm::kHalving);
  CHECK(choose(request, {.latency_us = 4000, .bandwidth_gb_s = 1.9, .reduce_gb_s = 10}) ==
        Algorithm::kDoubling);
}

TEST_CASE("choose: links that cost nothing more at once make everybody talk to everybody") {
  LinkCosts costs = loopback_costs();
  costs.further_link = 0;
  CHECK(over_loopback(OpKind::kAllGather, 8, kKiB) == Algorithm::kDoubling);
  CHECK(choose(request_of(OpKind::kAllGather, 8, kKiB), costs) == Algorithm::kDirect);
}

TEST_CASE("choose: a profile stands for the transports that it has, defaults for the others") {
  CostProfile profile;
  profile.tcp = LinkCosts{.latency_us = 7, .bandwidth_gb_s = 1, .reduce_gb_s = 1};
  CHECK(costs_of(profile, false).latency_us == 7);
  CHECK(costs_of(profile, true).latency_us == shared_memory_costs().latency_us);
  CHECK(costs_of({}, false).latency_us == loopback_costs().latency_us);
}

TEST_CASE(
    "choose: between far hosts steps are spared until bytes cost more, near ones stay as they "
    "are") {
  CHECK(costs_at(loopback_costs(), 100).latency_us == loopback_costs().latency_us);
  const LinkCosts far = costs_at(loopback_costs(), 10'000);
  const auto over_the_way = [&](Rank n, std::uint64_t bytes) {
    return choose(request_of(OpKind::kAllReduce, n, bytes), far);
  };
  CHECK(over_the_way(4, 4 * kKiB) == Algorithm::kGather);
  CHECK(over_the_way(4, 64 * kKiB) == Algorithm::kGather);
  CHECK(over_the_way(4, kMiB) == Algorithm::kDirect);
  CHECK(over_the_way(4, 4 * kMiB) == Algorithm::kDirect);
  CHECK(over_the_way(4, 16 * kMiB) == Algorithm::kRing);
  CHECK(over_the_way(2, 512 * kKiB) == Algorithm::kGather);
  CHECK(over_the_way(2, 4 * kMiB) != Algorithm::kGather);
}

TEST_CASE("choose: what a ring's step sends hides the way of the next, where that is long") {
  const LinkCosts far = costs_at(loopback_costs(), 10'000);
  CHECK(pieces_on_way(far) == 47);
  CHECK(pieces_on_way(loopback_costs()) == 0);
  const Request request = request_of(OpKind::kAllReduce, 4, 16 * kMiB);
  // Six ways of 10 ms, one more to agree, and the bytes: but four or five of those ways are hidden.
  const double bytes_us = estimate_us(request, Algorithm::kDirect, far) / 1.1 - 2 * 10'000;
  CHECK(estimate_us(request, Algorithm::kRing, far) < bytes_us + 3 * 10'000);
}

TEST_CASE("choose: a crowd goes round in a ring") {
  CHECK(over_loopback(OpKind::kAllReduce, 64, 64 * kMiB) == Algorithm::kRing);
  CHECK(over_loopback(OpKind::kReduceScatter, 64, 64 * kMiB) == Algorithm::kRing);
  CHECK(over_loopback(OpKind::kAllGather, 64, 64 * kMiB) == Algorithm::kRing);
}

TEST_CASE("choose: short vectors are scattered in few messages, longer ones in few bytes") {
  CHECK(over_loopback(OpKind::kReduceScatter, 1024, kKiB) == Algorithm::kDoubling);
  CHECK(over_loopback(OpKind::kReduceScatter, 4, 256 * kKiB) == Algorithm::kHalving);
  CHECK(over_loopback(OpKind::kReduceScatter, 1024, kMiB) == Algorithm::kHalving);
}

TEST_CASE(
    "choose: short vectors are broadcast by the root or down a tree, long ones along a chain") {
  CHECK(over_loopback(OpKind::kBroadcast, 3, kKiB) == Algorithm::kDirect);
  CHECK(over_loopback(OpKind::kBroadcast, 4, kKiB) == Algorithm::kDoubling);
  CHECK(over_loopback(OpKind::kBroadcast, 8, kKiB) == Algorithm::kDoubling);
  CHECK(over_loopback(OpKind::kBroadcast, 8, 64 * kMiB) == Algorithm::kRing);
  CHECK(over_loopback(OpKind::kAllGather, 8, kKiB) == Algorithm::kDoubling);
}

TEST_CASE("choose: what it picks can always be planned, and is the cheapest of those") {
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    for (const Rank n : {1, 2, 3, 4, 7, 8, 33}) {
      for (const std::uint64_t bytes : {std::uint64_t{0}, kKiB, 100 * kKiB, 4 * kMiB}) {
        for (int op = 0; op <= static_cast<int>(OpKind::kAllToAll); ++op) {
          Request request = request_of(static_cast<OpKind>(op), n, bytes, static_cast<DType>(d));
          for (const Order order : {Order::kRing, Order::kTree, Order::kRank}) {
            request.order = order;
            const Algorithm picked = choose(request, loopback_costs());
            CHECK(make_plan(request, picked).algorithm == picked);
            for (const Algorithm other : algorithms_for(request)) {
              CHECK(estimate_us(request, picked, loopback_costs()) <=
                    estimate_us(request, other, loopback_costs()));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("choose: an operation without plans is an error that names it") {
  CHECK_THROWS_AS(choose({.op = OpKind::kSend, .counts = {}, .recv_counts = {}}, loopback_costs()),
                  InvalidArgument);
}

}  // namespace
}  // namespace gradring::collectives::choose_test
