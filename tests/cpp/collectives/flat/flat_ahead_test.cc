// Ranks that wait for nobody are ahead of the others, and what they gave or called wrong is found
// all the same.
#include <doctest/doctest.h>

#include <vector>

#include "base/error.h"
#include "collectives/flat/flat_memory.h"
#include "support/collectives/flat_team.h"

namespace gradring::testing::flat_ahead_test {
namespace {

// Neither root waits for anybody, so each learns of the other when it calls the next operation.
void two_roots(std::uint64_t count, Rank processors) {
  FlatTeam team(3, processors);
  const PlanCase rooted{.op = OpKind::kBroadcast, .world_size = 3, .count = count, .root = 0};
  PlanCase other_root = rooted;
  other_root.root = 2;
  auto memory = random_memory(rooted, 1);
  const auto first = team.run([&](Rank rank) {
    team.call(rank, rank == 2 ? other_root : rooted, memory[static_cast<std::size_t>(rank)]);
  });
  for (const auto& error : first) CHECK(thrown_by(error).text == "");
  const PlanCase next{.op = OpKind::kBarrier, .world_size = 3};
  Memory nothing;
  for (const auto& error : team.run([&](Rank rank) { team.call(rank, next, nothing); })) {
    const Thrown thrown = thrown_by(error);
    CHECK(thrown.kind == ErrorKind::kMismatch);
    for (const Rank root : {0, 2})
      CHECK(thrown.text.find(str("broadcast #1 (float32 x ", count, ", root ", root, ")")) !=
            std::string::npos);
  }
}

TEST_CASE("flat: two roots that may be ahead are a mismatch in the next operation") {
  two_roots(9, 64);
  two_roots(9, 2);
  two_roots(20000, 2);
  two_roots(700000, 2);  // More than there are slots.
}

// With `count` floats; rank 0 only gives: it is the broadcast's root, and not the reduce's.
void runs_ahead(OpKind op, std::uint64_t count, std::size_t ahead, Rank processors = 64) {
  FlatTeam team(2, processors);
  const PlanCase c{
      .op = op, .world_size = 2, .count = count, .root = op == OpKind::kReduce ? 1 : 0};
  std::vector<std::vector<Memory>> memory;
  for (std::size_t i = 0; i <= ahead; ++i) memory.push_back(random_memory(c, i));
  std::vector<std::vector<reference::Buffer>> expected;
  for (const auto& one : memory) expected.push_back(expected_outputs(c, one));
  for (std::size_t i = 0; i < ahead; ++i) team.call(0, c, memory[i][0]);
  CHECK_THROWS_AS(team.call(0, c, memory[ahead][0], Millis{20}), transport::DeadlinePassed);
  for (std::size_t i = 0; i < ahead; ++i) {
    team.call(1, c, memory[i][1]);
    CHECK(memory[i][1].output_is(expected[i][1]));
  }
}

TEST_CASE("flat: who needs nothing from the others is ahead of them by less than its posts") {
  using collectives::FlatMemory;
  for (const OpKind op : {OpKind::kBroadcast, OpKind::kReduce}) {
    CAPTURE(name(op));
    for (const std::uint64_t count : {5, 100}) runs_ahead(op, count, FlatMemory::kPosts - 1);
    runs_ahead(op, 1000, FlatMemory::kPayloads - 1);
    runs_ahead(op, 1000, FlatMemory::kPosts - 1, 1);
  }
  // Longer ones by as many as there are slots.
  runs_ahead(OpKind::kBroadcast, 16384, FlatMemory::kSlots, 1);
}

// One of 64 KiB, which a root may have finished before the others begin where they share
// processors.
constexpr PlanCase kAhead{.op = OpKind::kBroadcast, .world_size = 3, .count = 16384, .root = 0};

TEST_CASE(
    "flat: what a root that was ahead has given is there after it left, and then it is lost") {
  FlatTeam team(3, 2);
  std::vector<std::vector<Memory>> memory;
  for (std::uint64_t i = 0; i < 5; ++i) memory.push_back(random_memory(kAhead, i));
  for (std::size_t i = 0; i < 4; ++i) team.call(0, kAhead, memory[i][0]);
  team.leave(0, Leaving::kBoth);
  const auto errors = team.run([&](Rank rank) {
    if (rank == 0) return;
    for (auto& one : memory) team.call(rank, kAhead, one[static_cast<std::size_t>(rank)]);
  });
  for (const std::size_t rank : {1u, 2u}) {
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(memory[i][rank].output_is(expected_outputs(kAhead, memory[i])[rank]));
    CHECK(thrown_by(errors[rank]).kind == ErrorKind::kPeerLost);
    CHECK(thrown_by(errors[rank]).lost_rank == kFirstWorldRank);
  }
}

TEST_CASE("flat: a root that is ahead of a rank that left is told so once its slots are full") {
  FlatTeam team(3, 2);
  std::vector<Memory> memory = random_memory(kAhead, 1);
  team.leave(2, Leaving::kBoth);
  for (std::uint32_t nth = 0; nth < collectives::FlatMemory::kSlots; ++nth)
    for (const Rank rank : {0, 1}) team.call(rank, kAhead, memory[static_cast<std::size_t>(rank)]);
  CHECK(memory[1].output_is(expected_outputs(kAhead, memory)[1]));
  const auto errors = team.run([&](Rank rank) {
    if (rank == 0) team.call(rank, kAhead, memory[0]);
  });
  CHECK(thrown_by(errors[0]).kind == ErrorKind::kPeerLost);
  CHECK(thrown_by(errors[0]).lost_rank == kFirstWorldRank + 2);
}

}  // namespace
}  // namespace gradring::testing::flat_ahead_test
