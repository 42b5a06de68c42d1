// Long all_gathers and broadcasts that read the other ranks' memory: the same bits as through the
// slots, on every rank or on none, and never what a rank that gave up has there by then.
#include "collectives/flat/flat_direct.h"

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/flat/flat_ways.h"
#include "support/collectives/flat_team.h"
#include "support/instrumented.h"

namespace gradring::testing::flat_direct_test {
namespace {

using collectives::FlatWays;

PlanCase gather_of(Rank ranks, std::uint64_t count) {
  return {.op = OpKind::kAllGather, .world_size = ranks, .count = count};
}

// From now on the kernel lets this thread read nobody's memory: as a container's rules may.
void forbid_reading() {
  std::array<sock_filter, 4> rules{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{rules.size(), rules.data()};
  REQUIRE(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  REQUIRE(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// The same call `times` in a row by all ranks; before each, `before(rank, nth)`. Whether each rank
// had what it should, and whether it read directly, after each.
struct Outcome {
  bool is_right = false;
  bool was_direct = false;
  bool stayed_cached = false;
};
template <typename Before>
std::vector<std::vector<Outcome>> calls_in_a_row(FlatTeam& team, const PlanCase& c, int times,
                                                 const Before& before) {
  // Other bytes in every call: what lies in the slots from the last one is not right by chance.
  std::vector<std::vector<Memory>> memory;
  std::vector<std::vector<reference::Buffer>> expected;
  for (int nth = 0; nth < times; ++nth) {
    memory.push_back(random_memory(c, static_cast<std::uint64_t>(nth)));
    expected.push_back(expected_outputs(c, memory.back()));
  }
  std::vector<std::vector<Outcome>> outcomes(static_cast<std::size_t>(team.ranks()));
  const auto errors = team.run([&](Rank rank) {
    const auto at = static_cast<std::size_t>(rank);
    for (int nth = 0; nth < times; ++nth) {
      before(rank, nth);
      Memory& mine = memory[static_cast<std::size_t>(nth)][at];
      team.call(rank, c, mine);
      outcomes[at].push_back({mine.output_is(expected[static_cast<std::size_t>(nth)][at]),
                              team.flat(rank).reads_directly(), team.flat(rank).stays_cached()});
    }
  });
  for (const auto& error : errors) CHECK(thrown_by(error).text == "");
  return outcomes;
}

TEST_CASE("flat direct: from the third long call on, every rank reads the others' memory") {
  for (const Rank ranks : {2, 3}) {
    for (const PlanCase& c :
         {gather_of(ranks, 300001),
          PlanCase{.op = OpKind::kBroadcast, .world_size = ranks, .count = 100003, .root = 1}}) {
      FlatTeam team(ranks);
      const auto outcomes = calls_in_a_row(team, c, 4, [](Rank, int) {});
      for (const auto& of_rank : outcomes) {
        REQUIRE(of_rank.size() == 4);
        for (std::size_t nth = 0; nth < 4; ++nth) {
          CHECK(of_rank[nth].is_right);
          CHECK(of_rank[nth].was_direct == (nth > 1));
        }
      }
    }
  }
}

TEST_CASE("flat direct: all ranks go the same way, whichever they measure to be faster") {
  constexpr int kTimes = 200;
  for (const PlanCase& c :
       {gather_of(3, 30'000),
        PlanCase{.op = OpKind::kBroadcast, .world_size = 3, .count = 20'000, .root = 2}}) {
    FlatTeam team(3);
    const auto outcomes = calls_in_a_row(team, c, kTimes, [](Rank, int) {});
    for (const auto& of_rank : outcomes) {
      REQUIRE(of_rank.size() == kTimes);
      for (std::size_t nth = 0; nth < of_rank.size(); ++nth) {
        CHECK(of_rank[nth].is_right);
        CHECK(of_rank[nth].was_direct == outcomes[0][nth].was_direct);
      }
    }
    const auto directs = std::count_if(outcomes[0].begin(), outcomes[0].end(),
                                       [](const Outcome& one) { return one.was_direct; });
    CHECK(directs >= static_cast<std::ptrdiff_t>(FlatWays::kTurn));
    CHECK(directs < kTimes - static_cast<std::ptrdiff_t>(FlatWays::kTurn));
  }
}

// More pieces than there are slots, the last of them shorter; each way has its turn.
TEST_CASE("flat direct: what goes through a little of the slots has the right bits, on all ranks") {
  const auto broadcast = [](std::uint64_t count) {
    return PlanCase{.op = OpKind::kBroadcast, .world_size = 3, .count = count, .root = 1};
  };
  struct {
    PlanCase c;
    Rank processors;
    int times;
  } const cases[] = {{gather_of(2, 300'001), 2, 30},
                     {broadcast(300'001), 3, 30},
                     // The root is ahead of those whose measurements decide.
                     {broadcast(300'001), 2, 60},
                     {broadcast(20'001), 2, 400}};
  for (const auto& [c, processors, times] : cases) {
    FlatTeam team(c.world_size, processors);
    const auto outcomes = calls_in_a_row(team, c, times, [](Rank, int) {});
    for (const auto& of_rank : outcomes) {
      REQUIRE(of_rank.size() == static_cast<std::size_t>(times));
      for (std::size_t nth = 0; nth < of_rank.size(); ++nth) {
        CHECK(of_rank[nth].is_right);
        CHECK(of_rank[nth].stayed_cached == outcomes[0][nth].stayed_cached);
      }
    }
    CHECK(std::any_of(outcomes[0].begin(), outcomes[0].end(),
                      [](const Outcome& one) { return one.stayed_cached; }));
  }
}

TEST_CASE("flat direct: not where ranks share processors") {
  FlatTeam team(3, 2);
  for (const auto& of_rank : calls_in_a_row(team, gather_of(3, 300001), 3, [](Rank, int) {}))
    for (const Outcome& outcome : of_rank) {
      CHECK(outcome.is_right);
      CHECK_FALSE(outcome.was_direct);
    }
}

TEST_CASE(
    "flat direct: one rank that may not read brings all back to the slots, with the right bits") {
  // One step through the slots, and more than there are slots.
  const std::uint64_t many = kWatchesThreads ? 1'300'003 : 2'000'003;
  for (const std::uint64_t count : {std::uint64_t{30'000}, many}) {
    for (const int forbidden_from : {0, 1, 2, 3, 4}) {
      if (kWatchesThreads && count == many && forbidden_from != 3) continue;
      CAPTURE(forbidden_from);
      FlatTeam team(3);
      const auto outcomes = calls_in_a_row(team, gather_of(3, count), 6, [&](Rank rank, int nth) {
        if (rank == 1 && nth == forbidden_from) forbid_reading();
      });
      for (const auto& of_rank : outcomes) {
        REQUIRE(of_rank.size() == 6);
        for (int nth = 0; nth < 6; ++nth) {
          CHECK(of_rank[static_cast<std::size_t>(nth)].is_right);
          const bool was_direct = nth > 1 && nth < forbidden_from;
          CHECK(of_rank[static_cast<std::size_t>(nth)].was_direct == was_direct);
        }
      }
    }
  }
}

// Rank 0 comes after rank 1 gave up: what rank 1 has there by then may be anything.
TEST_CASE("flat direct: what a rank gave up is not taken for its part") {
  for (const bool leaves : {false, true}) {
    FlatTeam team(2);
    const PlanCase c = gather_of(2, 200003);
    calls_in_a_row(team, c, 3, [](Rank, int) {});
    auto memory = random_memory(c, 9);
    const auto early = team.run([&](Rank rank) {
      if (rank == 1) team.call(rank, c, memory[1], Millis{100});
    });
    REQUIRE(thrown_by(early[1]).is_deadline);
    if (leaves) team.flat(1).leave();
    const auto late = team.run([&](Rank rank) {
      if (rank == 0) team.call(rank, c, memory[0], Millis{100});
    });
    const Thrown thrown = thrown_by(late[0]);
    CHECK(thrown.is_deadline == !leaves);
    if (!leaves) CHECK(team.flat(0).awaited() == 1);
    if (leaves) CHECK(thrown.lost_rank == kFirstWorldRank + 1);
    if (leaves) CHECK(thrown.text.find("gave this call up") != std::string::npos);
  }
}

}  // namespace
}  // namespace gradring::testing::flat_direct_test
