// Links of different rates: who owns how much, and that it changes nothing but the bytes sent.
#include "collectives/plan/uneven.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/collectives/plan_cases.h"
#include "support/collectives/plan_interpreter.h"

namespace gradring::testing::uneven_test {
namespace {

using collectives::ActionKind;
using collectives::Algorithm;
using collectives::Order;
using collectives::Plan;
using collectives::Request;
using collectives::uneven_shares;
using Counts = std::vector<std::uint64_t>;

// Elements that a rank sends in a direct exchange.
std::uint64_t sent(std::uint64_t count, const Counts& owned, std::size_t rank) {
  return count - owned[rank] + (owned.size() - 1) * owned[rank];
}

TEST_CASE("uneven_shares: a link at a quarter of the others' rate owns nothing, the others alike") {
  const Counts owned = uneven_shares(3000, std::vector<double>{1000, 1000, 1000, 250});
  CHECK(owned == Counts{1000, 1000, 1000, 0});
}

TEST_CASE("uneven_shares: nothing is uneven where links are alike, nearly so, or two") {
  CHECK(uneven_shares(3000, std::vector<double>{10, 10, 10, 10}).empty());
  CHECK(uneven_shares(3000, std::vector<double>{10, 10, 10, 9.8}).empty());
  CHECK(uneven_shares(3000, std::vector<double>{10, 1}).empty());
}

TEST_CASE("uneven_shares: all elements have an owner, and links are busy for about as long") {
  const std::vector<double> rates{900, 600, 700, 1000, 500};
  const std::uint64_t count = 1'000'003;
  const Counts owned = uneven_shares(count, rates);
  REQUIRE(owned.size() == rates.size());
  CHECK(std::accumulate(owned.begin(), owned.end(), std::uint64_t{0}) == count);
  double longest = 0;
  for (std::size_t rank = 0; rank < rates.size(); ++rank)
    longest = std::max(longest, static_cast<double>(sent(count, owned, rank)) / rates[rank]);
  for (std::size_t rank = 0; rank < rates.size(); ++rank) {
    if (owned[rank] == 0) continue;
    const double busy = static_cast<double>(sent(count, owned, rank)) / rates[rank];
    CHECK(busy > 0.999 * longest);
  }
}

TEST_CASE("uneven all_reduce: the bits of the even one, in every order, whoever owns what") {
  const std::vector<Counts> cuts{{0, 0, 70'001, 0},            // One owner of all.
                                 {23'334, 23'333, 23'334, 0},  // Three, across the even chunks.
                                 {1, 40'000, 0, 30'000}};
  std::uint64_t seed = 1;
  for (const Counts& owned : cuts) {
    for (const Order order : {Order::kRing, Order::kTree, Order::kRank}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const PlanCase c{.algorithm = Algorithm::kDirect,
                         .world_size = 4,
                         .count = 70'001,
                         .order = order,
                         .dtype = dtype,
                         .reduce_op = ReduceOp::kAvg,
                         .is_in_place = seed % 2 == 0,
                         .owned = owned};
        CAPTURE(c.text());
        std::vector<Plan> plans;
        for (const Request& request : c.requests())
          plans.push_back(make_plan(request, c.algorithm));
        std::vector<Memory> memory = random_memory(c, seed);
        const auto expected = expected_outputs(c, memory);
        REQUIRE(play(c, plans, memory, {.seed = seed, .link_bytes = 1 << 14}) == "");
        for (std::size_t rank = 0; rank < memory.size(); ++rank)
          CHECK(memory[rank].output_is(expected[rank]));
        ++seed;
      }
    }
  }
}

TEST_CASE("uneven all_reduce: who owns nothing sends its vector once") {
  const PlanCase c{.algorithm = Algorithm::kDirect,
                   .world_size = 4,
                   .count = 3 << 20,
                   .owned = uneven_shares(3 << 20, std::vector<double>{4, 4, 4, 1})};
  const Plan plan = make_plan(c.requests()[3], Algorithm::kDirect);
  std::uint64_t bytes = 0;
  for (const auto& action : plan.actions)
    if (action.kind == ActionKind::kSend) bytes += action.bytes;
  CHECK(bytes == c.count * 4);
}

}  // namespace
}  // namespace gradring::testing::uneven_test
