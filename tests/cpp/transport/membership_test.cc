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

TEST_CASE("a frozen rank is given up after the heartbeat timeout, not before") {
  Cluster cluster(3);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 8 / 10);
  CHECK(cluster.gone(0).empty());
  cluster.pass(Cluster::kHeartbeatTimeout * 6 / 10);
  CHECK(cluster.gone(0) == Ranks{1});
  CHECK(cluster.gone(2) == Ranks{1});
  CHECK(contains(cluster.seat(2).gone[0].text, "heartbeat"));
}

TEST_CASE("a rank that was frozen for too long learns that it was given up") {
  Cluster cluster(3);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 2);
  cluster.thaw(1);
  REQUIRE_FALSE(cluster.gone(1).empty());
  CHECK(cluster.gone(1)[0] == 1);
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

TEST_CASE("a frozen coordinator is replaced, and learns it from all when it wakes") {
  Cluster cluster(3);
  cluster.freeze(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 3);
  CHECK(cluster.gone(1) == Ranks{0});
  CHECK(cluster.gone(2) == Ranks{0});
  CHECK(cluster.seat(2).membership.coordinator() == 1);
  cluster.thaw(0);
  REQUIRE_FALSE(cluster.gone(0).empty());
  CHECK(cluster.gone(0)[0] == 0);
}

TEST_CASE(
    "a coordinator that hears nobody any more gives up alone, and tells nobody about others") {
  Cluster cluster(4);
  for (Rank rank = 1; rank < 4; ++rank) cluster.freeze(rank);  // Nothing of theirs comes through.
  cluster.pass(Cluster::kHeartbeatTimeout * 2);
  CHECK(cluster.gone(0) == Ranks{1, 2, 3});
  for (Rank rank = 1; rank < 4; ++rank) cluster.thaw(rank);
  cluster.pass(Cluster::kHeartbeatTimeout * 2);
  for (Rank rank = 1; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0});
    CHECK(cluster.seat(rank).membership.coordinator() == 1);
  }
}

TEST_CASE("one rank that has lost the coordinator does not make the others lose it") {
  Cluster cluster(5);
  cluster.cut(0, 3);
  cluster.pass(Cluster::kHeartbeatTimeout * 5);
  for (const Rank rank : {0, 1, 2, 4}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{3});
    CHECK(cluster.seat(rank).membership.coordinator() == 0);
  }
  const Ranks told = cluster.gone(3);
  CHECK(std::find(told.begin(), told.end(), 3) != told.end());
}

TEST_CASE("what a rank says after it was given up counts for nobody") {
  Cluster cluster(4);
  cluster.cut(0, 3);
  cluster.connect(3, 1);
  cluster.say(3, 1, wire::Lost{1, false, "you are dead"});
  cluster.say(3, 1, wire::Lost{2, false, "2 is dead"});
  cluster.say(3, 1, wire::Abort{7, 1, 3, {ErrorKind::kPeerLost, 2, "2 is dead"}});
  CHECK(cluster.gone(1) == Ranks{3});
  CHECK(cluster.seat(1).aborted.empty());
}

TEST_CASE("a coordinator that one rank has given up takes the others along to the next one") {
  Cluster cluster(4);
  cluster.say(2, 0, wire::Lost{0, false, "you were silent"});
  CHECK(cluster.gone(0) == Ranks{0});
  CHECK(cluster.gone(1) == Ranks{0});
  CHECK(cluster.gone(3) == Ranks{0});
  CHECK(cluster.are_connected(1, 3));
}

TEST_CASE("of a rank that leaves because it is cut off from the coordinator it is said so") {
  Cluster cluster(4);
  cluster.connect(3, 1);
  cluster.say(3, 1, wire::Lost{0, false, "it was silent"});
  cluster.connect(2, 1);
  cluster.say(3, 1, wire::Bye{});
  cluster.say(2, 1, wire::Bye{});
  REQUIRE(cluster.gone(1) == Ranks{3, 2});
  CHECK(contains(cluster.seat(1).gone[0].text, "rank 3 has left, having lost rank 0: it closed"));
  CHECK(contains(cluster.seat(1).gone[1].text, "rank 2 has left: it closed"));
}

TEST_CASE("a follower's word about another follower deposes nobody") {
  Cluster cluster(4);
  cluster.connect(3, 1);
  cluster.say(3, 1, wire::Lost{1, false, "you were silent"});
  cluster.say(2, 0, wire::Lost{1, false, "it was silent"});
  for (Rank rank = 0; rank < 4; ++rank) CHECK(cluster.gone(rank).empty());
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

// Told of a frozen rank by a coordinator that dies while it tells: those who have not heard of it
// look for the next coordinator there.
void check_that_a_loss_told_to(const Ranks& some, Rank ranks) {
  Cluster cluster(ranks);
  cluster.freeze(1);
  for (const Rank rank : some) cluster.say(0, rank, wire::Lost{1, false, "rank 1 was silent"});
  cluster.kill(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 4);
  for (Rank rank = 2; rank < ranks; ++rank) {
    CAPTURE(rank);
    Ranks gone = cluster.gone(rank);
    std::sort(gone.begin(), gone.end());
    CHECK(gone == Ranks{0, 1});
    CHECK(cluster.seat(rank).membership.coordinator() == 2);
    if (rank > 2) CHECK(cluster.are_connected(2, rank));
  }
}

TEST_CASE("who has not heard of all that the coordinator told last gets the time to come") {
  check_that_a_loss_told_to({2, 3, 4}, 6);
}

TEST_CASE("a next coordinator that has not heard so itself gets the time to lead") {
  check_that_a_loss_told_to({4}, 5);
  check_that_a_loss_told_to({3, 4, 5}, 6);
}

TEST_CASE("the time to lead ends: a next coordinator that never speaks is given up") {
  constexpr Millis kTimeout{1000};
  const Time began = Time{} + std::chrono::hours(1);
  transport::Membership third(
      {.rank = 3, .world_size = 4, .heartbeat_timeout = kTimeout, .addresses = {}}, began);
  transport::Membership::Actions actions;
  third.on_connected(0, began, actions);
  third.on_message(0, wire::Lost{1, false, "rank 1 was silent"}, began, actions);
  third.on_closed(0, began, "closed its control connection", actions);
  third.on_connected(2, began, actions);
  Time now = began;
  const auto is_given_up_by = [&](Millis time) {
    // A beat at a time: a longer pause would be this rank's own, and forgiven.
    for (; now <= began + time; now += third.beat_interval()) third.on_tick(now, {}, actions);
    return !third.is_alive(2);
  };
  CHECK_FALSE(is_given_up_by(kTimeout * 2));
  CHECK(is_given_up_by(kTimeout * 3));
}

TEST_CASE("who died with the coordinator is given up after one more heartbeat timeout") {
  Cluster cluster(4);
  cluster.freeze(3);  // Nothing tells the next coordinator so.
  cluster.kill(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 13 / 10);
  CHECK(cluster.gone(1) == Ranks{0, 3});
  CHECK(cluster.gone(2) == Ranks{0, 3});
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
