// Survivors of a communicator agree on who they are: the rules of membership_shrinks.cc.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "support/cluster.h"

namespace gradring::testing::membership_shrinks_test {
namespace {

using Ranks = std::vector<Rank>;

TEST_CASE("survivors who ask for it agree on who they are, and wait for each other") {
  Cluster cluster(4);
  cluster.kill(1);
  const Ranks members{0, 1, 2, 3};
  cluster.shrink(0, 7, members);
  cluster.shrink(3, 7, members);
  CHECK(cluster.seat(0).shrunk.empty());
  cluster.shrink(2, 7, members);
  for (const Rank rank : {0, 2, 3}) {
    CAPTURE(rank);
    REQUIRE(cluster.seat(rank).shrunk.size() == 1);
    CHECK(cluster.seat(rank).shrunk[0].survivors == Ranks{0, 2, 3});
  }
}

TEST_CASE("survivors hear whom their shrink waits for") {
  Cluster cluster(40);
  cluster.kill(1);
  Ranks members(40);
  std::iota(members.begin(), members.end(), 0);
  cluster.shrink(3, 7, members);
  cluster.shrink(0, 7, members);
  cluster.pass(Cluster::kHeartbeatTimeout);
  for (const Rank rank : {0, 3}) {
    CAPTURE(rank);
    REQUIRE_FALSE(cluster.seat(rank).awaited.empty());
    CHECK(cluster.seat(rank).awaited.back().count == 37);
    CHECK(cluster.seat(rank).awaited.back().missing.size() < 37);
    CHECK(cluster.seat(rank).awaited.back().missing.front() == 2);
  }
  CHECK(cluster.seat(2).awaited.empty());
}

TEST_CASE("whoever asks for a shrink hears at once whom it waits for") {
  Cluster cluster(4);
  cluster.kill(1);
  for (const Rank rank : {3, 0}) {
    CAPTURE(rank);
    cluster.shrink(rank, 7, {0, 1, 2, 3});
    REQUIRE(cluster.seat(rank).awaited.size() == 1);
    CHECK(cluster.seat(rank).awaited[0].missing == (rank == 3 ? Ranks{0, 2} : Ranks{2}));
  }
  cluster.shrink(2, 7, {0, 1, 2, 3});
  CHECK(cluster.seat(2).awaited.empty());
}

TEST_CASE("a rank that dies while the others wait for it is not waited for") {
  Cluster cluster(3);
  cluster.shrink(0, 7, {0, 1, 2});
  cluster.shrink(1, 7, {0, 1, 2});
  cluster.kill(2);
  REQUIRE(cluster.seat(1).shrunk.size() == 1);
  CHECK(cluster.seat(1).shrunk[0].survivors == Ranks{0, 1});
}

TEST_CASE("a request to shrink outlives the coordinator, and finds one that does not know yet") {
  Cluster cluster(4);
  const Ranks members{0, 1, 2, 3};
  cluster.freeze(0);
  cluster.shrink(2, 7, members);
  cluster.connect(2, 1);  // Rank 2 is first to see that the coordinator is gone ...
  cluster.say(2, 1, wire::ShrinkRequest{7, members});
  cluster.kill(0);  // ... and rank 1 hears it only now.
  cluster.shrink(1, 7, members);
  cluster.shrink(3, 7, members);
  for (const Rank rank : {1, 2, 3}) {
    CAPTURE(rank);
    REQUIRE_FALSE(cluster.seat(rank).shrunk.empty());
    CHECK(cluster.seat(rank).shrunk[0].survivors == Ranks{1, 2, 3});
  }
}

TEST_CASE("a shrink that was answered to one rank stands when the coordinator is gone") {
  for (const Rank told : {1, 2}) {  // The next coordinator, or one that has to tell it.
    CAPTURE(told);
    Cluster cluster(4);
    const Ranks members{0, 1, 2, 3};
    cluster.freeze(0);
    for (const Rank rank : {1, 2, 3}) cluster.shrink(rank, 7, members);
    cluster.say(0, told, wire::ShrinkReply{7, members});
    cluster.kill(0);
    for (const Rank rank : {1, 2, 3}) {
      CAPTURE(rank);
      REQUIRE(cluster.seat(rank).shrunk.size() == 1);
      CHECK(cluster.seat(rank).shrunk[0].survivors == members);
    }
  }
}

TEST_CASE("a rank that closes the communicator is not waited for, nor a survivor") {
  const Ranks members{0, 1, 2, 3};
  for (const Rank leaver : {0, 2}) {  // The coordinator closes one of its communicators, too.
    for (const bool leaves_first : {false, true}) {
      CAPTURE(leaver);
      CAPTURE(leaves_first);
      Cluster cluster(4);
      Ranks others = members;
      std::erase(others, leaver);
      if (leaves_first) cluster.leave_group(leaver, 7, members);
      for (const Rank rank : others) cluster.shrink(rank, 7, members);
      if (!leaves_first) cluster.leave_group(leaver, 7, members);
      for (const Rank rank : others) {
        REQUIRE(cluster.seat(rank).shrunk.size() == 1);
        CHECK(cluster.seat(rank).shrunk[0].survivors == others);
      }
    }
  }
}

TEST_CASE("who closed another communicator is waited for") {
  Cluster cluster(3);
  cluster.leave_group(2, 8, {0, 1, 2});
  for (const Rank rank : {0, 1}) cluster.shrink(rank, 7, {0, 1, 2});
  CHECK(cluster.seat(0).shrunk.empty());
}

// It has the new one, and the rank that leads now has heard of neither.
TEST_CASE("a survivor that then drops the old communicator is one for the next coordinator too") {
  Cluster cluster(4);
  const Ranks members{0, 2, 3};  // Rank 1 leads next, and is none of them.
  cluster.freeze(0);
  for (const Rank rank : {2, 3}) cluster.shrink(rank, 7, members);
  cluster.say(0, 3, wire::ShrinkReply{7, members});
  cluster.leave_group(3, 7, members);
  cluster.kill(0);  // Rank 2 asks rank 1 before rank 3 tells it.
  REQUIRE(cluster.seat(2).shrunk.size() == 1);
  CHECK(cluster.seat(2).shrunk[0].survivors == members);
}

}  // namespace
}  // namespace gradring::testing::membership_shrinks_test
