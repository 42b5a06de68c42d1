// Collectives through one shared-memory segment: the bits of the documented order on every rank,
// and an error instead of a wrong sum or a hang when the ranks do not do the same.
#include "collectives/flat/flat.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/collectives/flat_team.h"
#include "support/instrumented.h"

namespace gradring::testing::flat_test {
namespace {

using collectives::Order;
using Outputs = std::vector<reference::Buffer>;

constexpr OpKind kOps[] = {OpKind::kBarrier,   OpKind::kAllReduce, OpKind::kReduceScatter,
                           OpKind::kAllGather, OpKind::kBroadcast, OpKind::kReduce};

bool adds(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kReduceScatter || op == OpKind::kReduce;
}

// All ranks make the call; each must end with the reference's bits, and with its input untouched
// unless it gave that away.
void check_case(FlatTeam& team, const PlanCase& c, std::uint64_t seed) {
  CAPTURE(c.text());
  std::vector<Memory> memory = random_memory(c, seed);
  const std::vector<Memory> before = memory;
  const Outputs expected = expected_outputs(c, memory);
  const auto errors =
      team.run([&](Rank rank) { team.call(rank, c, memory[static_cast<std::size_t>(rank)]); });
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    CAPTURE(rank);
    REQUIRE(thrown_by(errors[rank]).text == "");
    REQUIRE(memory[rank].output_is(expected[rank]));
    if (!c.is_in_place || memory[rank].output_bytes == 0)
      REQUIRE(memory[rank].input_is(before[rank].input()));
  }
}

// In place and not, even and uneven parts, and every order of additions.
void check_variants(FlatTeam& team, PlanCase c) {
  std::uint64_t seed = 1;
  c.world_size = team.ranks();
  for (const Order order : {Order::kRing, Order::kTree, Order::kRank}) {
    if (!adds(c.op) && order != Order::kRing) continue;
    for (const bool is_uneven : {false, true}) {
      if (is_uneven && c.op != OpKind::kReduceScatter && c.op != OpKind::kAllGather) continue;
      for (const bool is_in_place : {false, true}) {
        c.order = order;
        c.has_uneven_counts = is_uneven;
        c.is_in_place = is_in_place;
        check_case(team, c, seed++);
      }
    }
  }
}

TEST_CASE("flat: every rank gets the bits of the documented order") {
  for (Rank n = 1; n <= 8; ++n) {
    if (kWatchesThreads && n != 2 && n != 3 && n != 5) continue;
    FlatTeam team(n);
    const auto ranks = static_cast<std::uint64_t>(n);
    for (const OpKind op : kOps)
      for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, ranks - 1, ranks,
                                        std::uint64_t{1237}, std::uint64_t{20011}})
        check_variants(team, {.op = op, .count = count, .root = n / 2});
  }
}

TEST_CASE("flat: every dtype and reduction, short and long") {
  for (const Rank n : {2, 5}) {
    if (kWatchesThreads && n != 2) continue;
    FlatTeam team(n);
    for (std::size_t d = 0; d < kDTypeCount; ++d) {
      for (std::size_t o = 0; o < kReduceOpCount; ++o) {
        const auto dtype = static_cast<DType>(d);
        const auto reduce_op = static_cast<ReduceOp>(o);
        if (!is_defined(dtype, reduce_op)) continue;
        for (const std::uint64_t bytes : {808, 40000})
          check_case(team,
                     {.op = OpKind::kAllReduce,
                      .world_size = n,
                      .count = bytes / item_bytes(dtype) + 1,
                      .order = (d + o) % 2 == 0 ? Order::kTree : Order::kRing,
                      .dtype = dtype,
                      .reduce_op = reduce_op,
                      .is_in_place = bytes == 808},
                     d * 10 + o);
      }
    }
  }
}

TEST_CASE("flat: long vectors go through the slots many times") {
  for (const Rank n : {2, 3}) {
    if (kWatchesThreads && n != 3) continue;
    FlatTeam team(n);
    for (std::size_t i = 0; i < std::size(kOps); ++i)
      check_case(team,
                 {.op = kOps[i],
                  .world_size = n,
                  .count = 1000003,
                  .root = n - 1,
                  .is_in_place = i % 2 == static_cast<std::size_t>(n % 2)},
                 7);
  }
}

TEST_CASE("flat: a group so large that its entries shrink") {
  const Rank ranks = kWatchesThreads ? 32 : 64;
  FlatTeam team(ranks);
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kBroadcast})
    check_case(team,
               {.op = op,
                .world_size = ranks,
                .count = 160021,
                .dtype = DType::kFloat64,
                .root = ranks - 1},
               3);
}

TEST_CASE("flat: operations follow each other while ranks run ahead, on hosts of all kinds") {
  for (const Rank n : {2, 3, 4, 5}) {
    FlatTeam team(n, n < 4 ? 64 : 2, n % 2 == 0);
    std::mt19937_64 random(static_cast<std::uint64_t>(n));
    std::vector<PlanCase> cases;
    std::vector<std::vector<Memory>> memory;
    std::vector<Outputs> expected;
    for (int i = 0; i < (kWatchesThreads ? 80 : 200); ++i) {
      // Now and then one whose steps take several slots at once.
      const std::uint64_t scale = std::uint64_t{1} << (i % 20 == 7 ? 19 : random() % 17);
      cases.push_back({.op = kOps[random() % std::size(kOps)],
                       .world_size = n,
                       .count = random() % scale,
                       .order = static_cast<Order>(random() % 3),
                       .root = static_cast<Rank>(random() % static_cast<std::uint64_t>(n)),
                       .is_in_place = random() % 2 == 0});
      memory.push_back(random_memory(cases.back(), random()));
      expected.push_back(expected_outputs(cases.back(), memory.back()));
    }
    const auto errors = team.run([&](Rank rank) {
      for (std::size_t i = 0; i < cases.size(); ++i)
        team.call(rank, cases[i], memory[i][static_cast<std::size_t>(rank)]);
    });
    for (const auto& error : errors) REQUIRE(thrown_by(error).text == "");
    for (std::size_t i = 0; i < cases.size(); ++i) {
      CAPTURE(cases[i].text());
      for (std::size_t rank = 0; rank < memory[i].size(); ++rank)
        REQUIRE(memory[i][rank].output_is(expected[i][rank]));
    }
  }
}

// Rank `other` makes the second call, everybody else the first.
std::vector<Thrown> thrown_by_calls(Rank ranks, Rank other, const PlanCase& usual,
                                    const PlanCase& unusual) {
  FlatTeam team(ranks);
  auto usual_memory = random_memory(usual, 1);
  auto unusual_memory = random_memory(unusual, 1);
  std::vector<Thrown> thrown;
  for (const auto& error : team.run([&](Rank rank) {
         const auto i = static_cast<std::size_t>(rank);
         if (rank == other) {
           team.call(rank, unusual, unusual_memory[i]);
         } else {
           team.call(rank, usual, usual_memory[i]);
         }
       }))
    thrown.push_back(thrown_by(error));
  return thrown;
}

TEST_CASE("flat: ranks that make different calls all get Mismatch with both calls") {
  for (const std::uint64_t count : {5, 100000}) {
    const PlanCase usual{.op = OpKind::kAllReduce, .world_size = 3, .count = count};
    std::vector<PlanCase> unusual(5, usual);
    unusual[0].op = OpKind::kBarrier;
    unusual[1].count = count + 1;
    unusual[2].count = 3 * count * count;
    unusual[3].dtype = DType::kInt32;
    unusual[4].reduce_op = ReduceOp::kMax;
    if (count > 5) unusual[2].count = 1;
    for (const PlanCase& c : unusual) {
      CAPTURE(c.text());
      for (const Thrown& thrown : thrown_by_calls(3, 1, usual, c)) {
        CHECK(thrown.kind == ErrorKind::kMismatch);
        CHECK(thrown.text.find("all_reduce #1") != std::string::npos);
        CHECK(thrown.text.find("rank 11 called " + std::string(name(c.op)) + " #1") !=
              std::string::npos);
      }
    }
  }
}

TEST_CASE("flat: a rank that is an operation ahead of the others is found out") {
  FlatTeam team(2);
  const PlanCase c{.op = OpKind::kAllReduce, .world_size = 2, .count = 3};
  auto memory = random_memory(c, 1);
  const auto errors = team.run([&](Rank rank) {
    if (rank == 1) team.skip_number(rank);
    team.call(rank, c, memory[static_cast<std::size_t>(rank)]);
  });
  for (const auto& error : errors) {
    CHECK(thrown_by(error).kind == ErrorKind::kMismatch);
    CHECK(thrown_by(error).text.find("all_reduce #2") != std::string::npos);
  }
}

TEST_CASE("flat: a rank that never comes is waited for until the deadline, and named") {
  for (const std::uint64_t count : {1, 100000}) {
    FlatTeam team(3);
    const PlanCase c{.op = OpKind::kAllReduce, .world_size = 3, .count = count};
    auto memory = random_memory(c, 1);
    const auto errors = team.run([&](Rank rank) {
      if (rank != 2) team.call(rank, c, memory[static_cast<std::size_t>(rank)], Millis{150});
    });
    for (const Rank rank : {0, 1}) {
      CHECK(thrown_by(errors[static_cast<std::size_t>(rank)]).is_deadline);
      CHECK(team.flat(rank).awaited() == 2);
    }
  }
}

TEST_CASE("flat: a rank that left is PeerLost, by its rank in the world") {
  for (const Leaving how : {Leaving::kGoodbye, Leaving::kFlag}) {
    for (const std::uint64_t count : {1, 100000}) {
      FlatTeam team(3);
      const PlanCase c{.op = OpKind::kAllReduce, .world_size = 3, .count = count};
      auto memory = random_memory(c, 1);
      const auto errors = team.run([&](Rank rank) {
        if (rank == 1) return team.leave(rank, how);
        team.call(rank, c, memory[static_cast<std::size_t>(rank)]);
      });
      for (const std::size_t rank : {0u, 2u}) {
        const Thrown thrown = thrown_by(errors[rank]);
        CHECK(thrown.kind == ErrorKind::kPeerLost);
        CHECK(thrown.lost_rank == kFirstWorldRank + 1);
        const char* const text = how == Leaving::kFlag ? "rank 11 has left" : "it closed";
        CHECK(thrown.text.find(text) != std::string::npos);
      }
    }
  }
}

TEST_CASE("flat: a part of a group names its own ranks, whoever's call it works for") {
  transport::Group whole(1, {10, 11, 12, 13});
  transport::Group part(2, {12, 13});
  auto memory = transport::SharedMemory::create(collectives::Flat::memory_bytes(2));
  collectives::Flat::lay_out(memory, 2, 2);
  collectives::Flat flat(std::move(memory), part, 0);
  part.mark_left(13, "rank 13 closed");
  transport::Idle idle(whole, Millis{20000}, false);
  collectives::Request request;
  request.op = OpKind::kBarrier;
  request.world_size = 2;
  try {
    flat.run(request, {}, 1, nullptr, nullptr, idle);
    FAIL("a rank that has left took part");
  } catch (const PeerLost& lost) {
    CHECK(lost.rank == 13);
    CHECK(std::string(lost.what()) == "rank 13 closed");
  }
}

TEST_CASE("flat: a rank may leave after its last operation without hurting the others") {
  for (const std::uint64_t count : {7, 100000}) {
    FlatTeam team(2);
    const PlanCase c{.op = OpKind::kAllReduce, .world_size = 2, .count = count};
    auto memory = random_memory(c, 1);
    const Outputs expected = expected_outputs(c, memory);
    const auto errors = team.run([&](Rank rank) {
      team.call(rank, c, memory[static_cast<std::size_t>(rank)]);
      team.leave(rank, Leaving::kBoth);
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK(thrown_by(errors[rank]).text == "");
      CHECK(memory[rank].output_is(expected[rank]));
    }
  }
}

TEST_CASE("flat: the operations it has, and no others") {
  for (std::size_t op = 0; op < kOpKindCount; ++op) {
    collectives::Request request;
    request.op = static_cast<OpKind>(op);
    const bool expected = std::find(std::begin(kOps), std::end(kOps), request.op) != std::end(kOps);
    CHECK(collectives::Flat::supports(request) == expected);
  }
}

}  // namespace
}  // namespace gradring::testing::flat_test
