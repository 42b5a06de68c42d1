// Membership's silences: who is given up and when, and which of two ranks that have lost each other
// it was that was frozen or cut off.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "support/cluster.h"
#include "transport/membership/membership.h"

namespace gradring::testing::membership_silence_test {
namespace {

using Ranks = std::vector<Rank>;

constexpr Millis kBeat = Cluster::kHeartbeatTimeout / 5;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
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

TEST_CASE("a long silence is told of in whole seconds") {
  const Time begin{std::chrono::hours(1)};
  transport::Membership leader({0, 2, std::chrono::minutes(2), {}}, begin);
  transport::Membership::Actions actions;
  leader.on_connected(1, begin, actions);
  for (Time now = begin; actions.gone.empty(); now += leader.beat_interval())
    leader.on_tick(now, {}, actions);
  CHECK(contains(actions.gone[0].text, "no heartbeat for 121 s (heartbeat timeout 120 s)"));
}

TEST_CASE("a rank that was frozen for too long learns that it was given up") {
  Cluster cluster(3);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 2);
  cluster.thaw(1);
  REQUIRE_FALSE(cluster.gone(1).empty());
  CHECK(cluster.gone(1)[0] == 1);
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

TEST_CASE("of a rank that leaves because it is cut off from the coordinator it is said so") {
  Cluster cluster(4);
  cluster.freeze(0);  // Or it would say what to believe.
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

TEST_CASE("a rank that was cut off does not take the coordinator along that it has given up") {
  Cluster cluster(4);
  cluster.pass(Cluster::kHeartbeatTimeout);
  cluster.say(2, 0, wire::Lost{0, false, "you were silent"});
  cluster.cut(0, 2);  // It has gone to the next one.
  CHECK(cluster.gone(0).empty());
  cluster.pass(kBeat);
  for (const Rank rank : {0, 1, 3}) {
    CAPTURE(rank);
    REQUIRE(cluster.gone(rank) == Ranks{2});
    CHECK(contains(cluster.seat(rank).gone[0].text,
                   "rank 2 had lost rank 0, which others had not: it was frozen"));
    CHECK(cluster.seat(rank).membership.coordinator() == 0);
  }
}

TEST_CASE("the next coordinator tells the one that a rank has lost of it, and that one decides") {
  Cluster cluster(4);
  cluster.connect(3, 1);  // Rank 0 does not see it go.
  cluster.say(3, 1, wire::Lost{0, false, "rank 0 was silent"});
  cluster.pass(kBeat);
  CHECK(cluster.gone(0) == Ranks{3});
  CHECK(cluster.gone(1) == Ranks{3});
  CHECK(cluster.gone(2) == Ranks{3});
  REQUIRE_FALSE(cluster.gone(3).empty());
  CHECK(cluster.gone(3)[0] == 3);
}

TEST_CASE("a coordinator that a second rank gives up was not heard, however well it hears") {
  for (const bool are_in_one_beat : {true, false}) {
    CAPTURE(are_in_one_beat);
    Cluster cluster(5);
    cluster.pass(Cluster::kHeartbeatTimeout);
    cluster.say(2, 0, wire::Lost{0, false, "you were silent"});
    if (!are_in_one_beat) cluster.pass(kBeat);
    cluster.say(3, 0, wire::Lost{0, false, "you were silent"});
    cluster.pass(kBeat);
    for (const Rank rank : {0, 1, 4}) {
      CAPTURE(rank);
      CHECK(cluster.gone(rank) == (are_in_one_beat ? Ranks{0} : Ranks{2, 0}));
    }
  }
}

TEST_CASE("what a rank says that was given up since is not believed when the coordinator leaves") {
  Cluster cluster(5);
  cluster.connect(3, 1);
  cluster.say(3, 1, wire::Lost{0, false, "rank 0 was silent"});
  cluster.pass(kBeat);
  REQUIRE(cluster.gone(1) == Ranks{3});
  cluster.pass(Cluster::kHeartbeatTimeout * 100);
  cluster.leave(0);
  for (const Rank rank : {1, 2, 4}) {
    CAPTURE(rank);
    REQUIRE(cluster.gone(rank) == Ranks{3, 0});
    CHECK(cluster.seat(rank).gone[1].has_left);
    CHECK(cluster.seat(rank).contested.empty());
  }
}

TEST_CASE("a next coordinator that hears nothing believes others that the last one has left") {
  Cluster cluster(4);
  cluster.pass(Cluster::kHeartbeatTimeout);
  cluster.seat(0).is_dead =
      true;  // The goodbye to rank 1 is lost, and so is all that would follow.
  for (const Rank rank : {2, 3}) cluster.say(0, rank, wire::Bye{});
  CHECK(cluster.gone(1).empty());
  cluster.pass(kBeat * 3);
  for (const Rank rank : {1, 2, 3}) {
    CAPTURE(rank);
    REQUIRE(cluster.gone(rank) == Ranks{0});
    CHECK(cluster.seat(rank).gone[0].has_left);
    CHECK(cluster.seat(rank).membership.coordinator() == 1);
  }
}

TEST_CASE("a doubt about its receiver or its sender is refused") {
  Cluster cluster(3);
  for (const Rank rank : {-1, 0, 2, 3})
    CHECK_THROWS_AS(cluster.say(2, 0, wire::Doubt{rank, "silent"}), ProtocolError);
}

TEST_CASE("a coordinator that was frozen takes all along to the next one if one has left it") {
  Cluster cluster(4);
  cluster.freeze(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 9 / 10);
  cluster.say(2, 0, wire::Lost{0, false, "you were silent"});  // The others would, a moment later.
  cluster.thaw(0);
  for (const Rank rank : {0, 1, 3}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0});
  }
  CHECK(cluster.are_connected(1, 3));
}

TEST_CASE("a coordinator that heard nobody takes all along as well") {
  Cluster cluster(4);
  for (Rank rank = 1; rank < 4; ++rank) cluster.freeze(rank);  // Nothing of theirs comes through.
  cluster.pass(Cluster::kHeartbeatTimeout * 9 / 10);
  for (Rank rank = 1; rank < 4; ++rank) cluster.thaw(rank);
  cluster.say(2, 0, wire::Lost{0, false, "you were silent"});
  for (const Rank rank : {0, 1, 3}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0});
  }
}

TEST_CASE("of two ranks that have lost each other the coordinator believes the other") {
  Cluster cluster(2);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 9 / 10);
  cluster.thaw(1);
  cluster.say(1, 0, wire::Lost{0, false, "you were silent"});
  CHECK(cluster.gone(0) == Ranks{0});
}

TEST_CASE("a rank that was frozen when others left it behind does not lead them later") {
  Cluster cluster(5);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 9 / 10);
  cluster.say(3, 1, wire::Lost{1, false, "you were silent"});
  cluster.thaw(1);
  CHECK(cluster.gone(1).empty());
  cluster.kill(0);
  for (const Rank rank : {2, 3, 4}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0, 1});
    CHECK(cluster.seat(rank).membership.coordinator() == 2);
  }
}

TEST_CASE(
    "one rank that was cut off does not depose a coordinator that the others have just come to") {
  Cluster cluster(6);
  cluster.kill(0);
  cluster.pass(kBeat);
  cluster.connect(5, 2);
  cluster.say(5, 2, wire::Lost{1, false, "rank 1 was silent"});
  cluster.pass(kBeat);
  for (const Rank rank : {1, 2, 3, 4}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0, 5});
    CHECK(cluster.seat(rank).membership.coordinator() == 1);
  }
}

TEST_CASE(
    "a next coordinator that was cut off and gives up all is not believed where most have come") {
  for (const bool have_come : {true, false}) {
    CAPTURE(have_come);
    Cluster cluster(5);
    cluster.freeze(1);
    cluster.kill(0);
    for (const Rank rank : {3, 4}) {
      if (!have_come) continue;
      cluster.connect(rank, 2);
      cluster.say(rank, 2, wire::Lost{1, false, "rank 1 was silent"});
    }
    cluster.say(1, 2, wire::Lost{2, false, "rank 2 was silent"});
    CHECK(cluster.gone(2) == (have_come ? Ranks{0, 1} : Ranks{0, 2}));
  }
}

TEST_CASE("who had left it behind and is lost itself since does not count") {
  Cluster cluster(5);
  cluster.freeze(1);
  cluster.pass(Cluster::kHeartbeatTimeout * 9 / 10);
  cluster.say(3, 1, wire::Lost{1, false, "you were silent"});
  cluster.thaw(1);
  cluster.kill(3);
  cluster.leave(0);
  for (const Rank rank : {1, 2, 4}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{3, 0});
    CHECK(cluster.seat(rank).membership.coordinator() == 1);
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

}  // namespace
}  // namespace gradring::testing::membership_silence_test
