// Who is still there: each rule of membership.h, without late or lost messages (sim/ has those).
#include "transport/membership/membership.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "support/cluster.h"

namespace gradring::testing::membership_test {
namespace {

using Ranks = std::vector<Rank>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("as long as everybody beats, nobody is given up") {
  Cluster cluster(5);
  cluster.pass(Cluster::kHeartbeatTimeout * 20);
  for (Rank rank = 0; rank < 5; ++rank) CHECK(cluster.gone(rank).empty());
}

TEST_CASE("everybody learns of a death at once, and once") {
  Cluster cluster(4);
  cluster.kill(2);
  cluster.pass(Cluster::kHeartbeatTimeout * 3);
  for (const Rank rank : {0, 1, 3}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{2});
    CHECK_FALSE(cluster.seat(rank).gone[0].has_left);
    CHECK(contains(cluster.seat(rank).gone[0].text, "rank 2"));
  }
}

TEST_CASE("a goodbye is passed on as one") {
  Cluster cluster(4);
  cluster.leave(3);
  for (const Rank rank : {0, 1, 2}) {
    CAPTURE(rank);
    REQUIRE(cluster.gone(rank) == Ranks{3});
    CHECK(cluster.seat(rank).gone[0].has_left);
  }
}

TEST_CASE("when the coordinator dies, the next rank leads and everybody goes to it") {
  Cluster cluster(4);
  cluster.kill(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 5);
  for (const Rank rank : {1, 2, 3}) {
    CHECK(cluster.gone(rank) == Ranks{0});
    CHECK(cluster.seat(rank).membership.coordinator() == 1);
  }
  CHECK(cluster.are_connected(1, 2));
  CHECK(cluster.are_connected(1, 3));
  cluster.kill(3);
  CHECK(cluster.gone(2) == Ranks{0, 3});
}

TEST_CASE("a coordinator that cannot be reached yet is tried again until its time is up") {
  Cluster cluster(3);
  cluster.freeze(1);
  cluster.kill(0);
  CHECK(cluster.gone(2) == Ranks{0});
  cluster.pass(Cluster::kHeartbeatTimeout / 2);
  CHECK(cluster.gone(2) == Ranks{0});
  cluster.thaw(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 3);
  CHECK(cluster.gone(2) == Ranks{0});
  CHECK(cluster.are_connected(1, 2));
}

TEST_CASE("a goodbye goes to every rank that is connected, whoever leads") {
  Cluster cluster(3);
  cluster.connect(2, 1);  // It has lost the coordinator already, rank 1 has not.
  cluster.leave(1);
  REQUIRE(cluster.gone(2) == Ranks{1});
  CHECK(cluster.seat(2).gone[0].has_left);
}

TEST_CASE("two ranks that go home one after the other are not taken for dead") {
  Cluster cluster(3);
  cluster.seat(1).is_dead = true;  // It has gone, and its goodbye with the coordinator's.
  cluster.leave(0);
  REQUIRE(cluster.gone(2) == Ranks{0, 1});
  CHECK(cluster.seat(2).gone[0].has_left);
  CHECK(cluster.seat(2).gone[1].has_left);
}

TEST_CASE("who has lost a rank that left for others is told so, and nobody else") {
  for (const Rank missed : {1, 2, 3}) {  // Rank 0 dies in the middle of its goodbye; rank 1 leads.
    CAPTURE(missed);
    Cluster cluster(4);
    cluster.seat(0).is_dead = true;
    for (const Rank rank : {1, 2, 3})
      if (rank != missed) cluster.say(0, rank, wire::Bye{});
    cluster.kill(0);
    for (const Rank rank : {1, 2, 3}) {
      CAPTURE(rank);
      REQUIRE(cluster.gone(rank) == Ranks{0});
      CHECK(cluster.seat(rank).gone[0].has_left == (rank != missed));
      CHECK(cluster.seat(rank).contested == (rank == missed ? Ranks{0} : Ranks{}));
    }
  }
}

TEST_CASE("two that have lost a rank that left for the coordinator are both told so") {
  Cluster cluster(4);
  cluster.seat(0).is_dead = true;
  cluster.say(0, 3, wire::Bye{});  // Of those that follow it next only one has heard it.
  cluster.kill(0);
  CHECK(cluster.seat(1).contested == Ranks{0});
  CHECK(cluster.seat(2).contested == Ranks{0});
  CHECK(cluster.seat(3).contested.empty());
}

TEST_CASE("a loss that died with the coordinator reaches everybody through the next one") {
  Cluster cluster(5);
  cluster.seat(4).is_dead = true;
  cluster.say(0, 2, wire::Lost{4, false, "rank 4 died"});  // Nobody else has heard of it.
  cluster.connect(3, 1);  // These two miss the coordinator before rank 1 does.
  cluster.connect(2, 1);
  CHECK(cluster.gone(1).empty());
  cluster.kill(0);
  for (const Rank rank : {1, 2, 3}) {
    CAPTURE(rank);
    Ranks gone = cluster.gone(rank);
    std::sort(gone.begin(), gone.end());
    CHECK(gone == Ranks{0, 4});
  }
}

TEST_CASE(
    "whom a coordinator gave up before it died is given up by the next one too, though it lives") {
  Cluster cluster(5);
  cluster.say(0, 2, wire::Lost{4, false, "rank 4 closed its control connection"});
  cluster.connect(4, 1);  // It has lost rank 0 as well, and is let in.
  cluster.kill(0);        // Before the others have heard of its loss.
  for (const Rank rank : {1, 2, 3}) {
    CAPTURE(rank);
    Ranks gone = cluster.gone(rank);
    std::sort(gone.begin(), gone.end());
    CHECK(gone == Ranks{0, 4});
  }
  const Ranks told = cluster.gone(4);
  CHECK(std::find(told.begin(), told.end(), 4) != told.end());
}

TEST_CASE("an abort reaches everybody, and only the first cause does") {
  Cluster cluster(4);
  cluster.abort(2, 7, {ErrorKind::kTimedOut, -1, "not finished"});
  cluster.abort(3, 7, {ErrorKind::kPeerLost, 2, "an echo"});
  for (Rank rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    REQUIRE_FALSE(cluster.seat(rank).aborted.empty());
    CHECK(cluster.seat(rank).aborted[0].failure.kind == ErrorKind::kTimedOut);
    CHECK(cluster.seat(rank).aborted[0].origin == 2);
  }
}

TEST_CASE("an abort that died with the coordinator is told to the next one") {
  Cluster cluster(4);
  cluster.freeze(0);
  cluster.abort(3, 7, {ErrorKind::kMismatch, -1, "different calls"});
  CHECK(cluster.seat(2).aborted.empty());
  cluster.kill(0);
  for (const Rank rank : {1, 2}) {
    CAPTURE(rank);
    REQUIRE_FALSE(cluster.seat(rank).aborted.empty());
    CHECK(cluster.seat(rank).aborted[0].failure.kind == ErrorKind::kMismatch);
  }
}

TEST_CASE("who closes a communicator is told to its members only, once") {
  Cluster cluster(5);
  cluster.leave_group(3, 7, {1, 2, 3});
  for (Rank rank = 0; rank < 5; ++rank) {
    CAPTURE(rank);
    const bool is_told = rank == 1 || rank == 2;
    REQUIRE(cluster.seat(rank).left.size() == (is_told ? 1 : 0));
    CHECK(cluster.gone(rank).empty());
    if (is_told) CHECK(cluster.seat(rank).left[0].rank == 3);
  }
  cluster.leave_group(0, 8, {0, 4});
  CHECK(cluster.seat(4).left.size() == 1);
  CHECK(cluster.seat(1).left.size() == 1);
}

TEST_CASE("the closing of a communicator that died with the coordinator is told by the next one") {
  Cluster cluster(4);
  cluster.freeze(0);
  cluster.leave_group(3, 7, {1, 2, 3});
  CHECK(cluster.seat(2).left.empty());
  cluster.kill(0);
  for (const Rank rank : {1, 2}) CHECK(cluster.seat(rank).left.size() == 1);
}

TEST_CASE("a loss of a rank that does not exist is refused") {
  Cluster cluster(2);
  CHECK_THROWS_AS(cluster.say(0, 1, wire::Lost{2, false, ""}), ProtocolError);
  CHECK_THROWS_AS(cluster.say(0, 1, wire::Lost{-1, false, ""}), ProtocolError);
}

}  // namespace
}  // namespace gradring::testing::membership_test
