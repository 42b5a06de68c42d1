// Plans of whole groups, played under random schedules: every rank ends with exactly the bits that
// the documented order of additions gives, nobody waits for ever, and every rule of plan.h holds.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "collectives/plan/plan.h"
#include "support/collectives/plan_cases.h"
#include "support/collectives/plan_interpreter.h"
#include "support/collectives/plan_rules.h"

namespace gradring::testing::plan_order_test {
namespace {

using collectives::Algorithm;
using collectives::Order;
using collectives::Plan;
using collectives::Request;

constexpr std::uint64_t kMiB = 1024 * 1024;

std::vector<Plan> plans_of(const PlanCase& c, std::uint16_t pieces_on_way = 0) {
  std::vector<Plan> plans;
  for (Request request : c.requests()) {
    request.pieces_on_way = pieces_on_way;
    plans.push_back(agreed_plan(request, c.algorithm));
  }
  return plans;
}

// Plays one case and checks every rank's output, and that inputs which are not outputs are as they
// were.
void check_case(const PlanCase& c, std::uint64_t seed, std::uint16_t pieces_on_way = 0) {
  CAPTURE(c.text());
  CAPTURE(seed);
  const std::vector<Plan> plans = plans_of(c, pieces_on_way);
  std::vector<Memory> memory = random_memory(c, seed);
  const auto expected = expected_outputs(c, memory);
  std::vector<reference::Buffer> inputs;
  for (const Memory& rank : memory) inputs.push_back(rank.input());

  // Links that hold less than any piece show who waits in a circle.
  const std::size_t small_links[] = {3, 64, 1 << 12};
  const std::size_t links[] = {1 << 14, 1 << 18, 1 << 20};
  const bool is_small = c.count <= 4096;
  const std::size_t link_bytes = is_small ? small_links[seed % 3] : links[seed % 3];
  REQUIRE(play(c, plans, memory, {.seed = seed, .link_bytes = link_bytes}) == "");
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    CAPTURE(rank);
    CHECK(memory[rank].output_is(expected[rank]));
    if (!c.is_in_place || memory[rank].output_bytes == 0) {
      CHECK(memory[rank].input_is(inputs[rank]));
    }
  }
}

void check_rules_of(const PlanCase& c, std::uint16_t pieces_on_way) {
  CAPTURE(c.text());
  const std::vector<Memory> memory = memory_of(c);
  const std::vector<Plan> plans = plans_of(c, pieces_on_way);
  for (Rank rank = 0; rank < c.world_size; ++rank) {
    CAPTURE(rank);
    const auto i = static_cast<std::size_t>(rank);
    REQUIRE(broken_rule(plans[i], memory[i], rank, c.world_size) == "");
  }
}

void check_rules(const PlanCase& c) {
  check_rules_of(c, 0);
}

// Every algorithm and every order that exists for the operation, in place and not.
template <typename Check>
void for_each_variant(PlanCase c, Check&& check) {
  const bool adds =
      c.op == OpKind::kAllReduce || c.op == OpKind::kReduceScatter || c.op == OpKind::kReduce;
  for (const Order order : {Order::kRing, Order::kTree, Order::kRank}) {
    if (!adds && order != Order::kRing) continue;
    c.order = order;
    for (const Algorithm algorithm : collectives::algorithms_for(c.requests().front())) {
      c.algorithm = algorithm;
      for (const bool is_in_place : {false, true}) {
        if (is_in_place && c.op == OpKind::kAllToAll) continue;  // Nobody promises that.
        c.is_in_place = is_in_place;
        check(c);
      }
    }
  }
}

constexpr OpKind kOps[] = {OpKind::kBarrier,   OpKind::kAllReduce, OpKind::kReduceScatter,
                           OpKind::kAllGather, OpKind::kBroadcast, OpKind::kReduce,
                           OpKind::kGather,    OpKind::kScatter,   OpKind::kAllToAll};

std::vector<std::uint64_t> small_counts(Rank n) {
  const auto ranks = static_cast<std::uint64_t>(n);
  std::vector<std::uint64_t> counts{0, 1, ranks - 1, ranks, ranks + 1, n > 9 ? 157u : 1237u};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

TEST_CASE(
    "plan: every rank gets the bits of the documented order, for every operation and algorithm") {
  std::uint64_t seed = 1;
  for (const Rank n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33}) {
    for (const OpKind op : kOps) {
      for (const std::uint64_t count : small_counts(n)) {
        for_each_variant({.op = op, .world_size = n, .count = count, .root = n / 2},
                         [&](const PlanCase& c) { check_case(c, seed++); });
      }
    }
  }
}

TEST_CASE("plan: no two actions race for the same bytes, in place or not") {
  for (const Rank n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33}) {
    for (const OpKind op : kOps) {
      for (const std::uint64_t count : small_counts(n)) {
        for_each_variant({.op = op, .world_size = n, .count = count, .root = n - 1}, check_rules);
      }
    }
  }
}

TEST_CASE("plan: long vectors go through scratch piece by piece with the same bits") {
  // Of each variant either the in-place or the other form, by turns: each comes up with every
  // algorithm.
  std::uint64_t seen = 0;
  const auto check_one_form = [&seen](const PlanCase& c) {
    const bool is_turn_in_place = seen / 2 % 2 == 1;
    ++seen;
    if (c.is_in_place == is_turn_in_place) check_case(c, seen);
  };
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                          OpKind::kBroadcast, OpKind::kReduce}) {
    for_each_variant({.op = op, .world_size = 2, .count = kMiB + 3}, check_one_form);
    for_each_variant({.op = op, .world_size = 3, .count = kMiB - 1, .root = 1}, check_one_form);
  }
  for_each_variant({.world_size = 6, .count = kMiB / 4, .dtype = DType::kFloat64}, check_one_form);
  for (const OpKind op : {OpKind::kReduceScatter, OpKind::kAllGather}) {
    for_each_variant({.op = op, .world_size = 3, .count = kMiB, .has_uneven_counts = true},
                     check_one_form);
  }
  check_case({.op = OpKind::kAllToAll,
              .algorithm = Algorithm::kDirect,
              .world_size = 3,
              .count = kMiB,
              .has_uneven_counts = true},
             1);
}

TEST_CASE("plan: vectors that keep long ways busy keep every rule, with the same bits") {
  std::uint64_t seen = 0;
  for (const auto pieces_on_way : {std::uint16_t{12}, std::uint16_t{160}}) {
    for (const Rank n : {2, 3, 4}) {
      for (const OpKind op :
           {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather, OpKind::kReduce}) {
        const PlanCase c{.op = op, .world_size = n, .count = 2 * kMiB + 5, .root = 1};
        for_each_variant(c, [&](const PlanCase& variant) {
          check_rules_of(variant, pieces_on_way);
          if (++seen % 5 == 0) check_case(variant, seen, pieces_on_way);
        });
      }
    }
  }
}

TEST_CASE("plan: nothing is added up, nor output written, before all are known to be in the call") {
  for (const Rank n : {3, 4, 5, 8, 9, 33}) {
    for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
      const PlanCase c{.op = op, .world_size = n, .count = 1000, .root = 0};
      for (const Plan& plan : plans_of(c)) {
        CAPTURE(n);
        REQUIRE(plan.tokens > 0);
        // Of each action, whether the last word of the others comes before it.
        std::vector<bool> is_after(plan.actions.size());
        is_after[plan.tokens - 1] = true;
        for (std::size_t i = 0; i < plan.actions.size(); ++i) {
          const collectives::Action& action = plan.actions[i];
          for (std::uint32_t nth = 0; is_after[i] && nth < action.dependent_count; ++nth)
            is_after[plan.dependents[action.first_dependent + nth]] = true;
          const bool writes = action.kind != collectives::ActionKind::kSend &&
                              action.at.place == collectives::Place::kOutput;
          if (writes || action.kind == collectives::ActionKind::kReduce) CHECK(is_after[i]);
        }
      }
    }
  }
}

TEST_CASE("plan: long vectors keep every rule while slots are used again") {
  for (const Rank n : {2, 3, 4, 6, 7}) {
    for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
      for_each_variant({.op = op, .world_size = n, .count = 3 * kMiB + 1}, check_rules);
    }
  }
}

TEST_CASE("plan: parts of unequal length, some empty, arrive where they belong") {
  std::uint64_t seed = 1;
  for (const Rank n : {1, 2, 3, 5, 8}) {
    for (const OpKind op : {OpKind::kReduceScatter, OpKind::kAllGather, OpKind::kAllToAll}) {
      for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{1000}}) {
        for_each_variant({.op = op, .world_size = n, .count = count, .has_uneven_counts = true},
                         [&](const PlanCase& c) {
                           check_rules(c);
                           check_case(c, seed++);
                         });
      }
    }
  }
}

TEST_CASE("plan: every dtype and operator, averages divided once") {
  std::uint64_t seed = 1;
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    for (std::size_t o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto reduce_op = static_cast<ReduceOp>(o);
      if (!is_defined(dtype, reduce_op)) continue;
      for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
        for_each_variant(
            {.op = op, .world_size = 5, .count = 333, .dtype = dtype, .reduce_op = reduce_op},
            [&](const PlanCase& c) { check_case(c, seed++); });
      }
    }
  }
}

TEST_CASE("plan: the schedule cannot be seen in the result") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect, Algorithm::kGather}) {
      check_case({.algorithm = algorithm, .world_size = 4, .count = 20000, .is_in_place = true},
                 seed);
    }
  }
}

}  // namespace
}  // namespace gradring::testing::plan_order_test
