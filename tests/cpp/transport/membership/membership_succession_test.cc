// Who leads after a coordinator, and which of the others it finds.
#include <doctest/doctest.h>

#include "support/cluster.h"
#include "transport/membership/membership.h"

namespace gradring::testing::membership_succession_test {
namespace {

using Ranks = std::vector<Rank>;

// Rank 3 of four that has just lost the coordinator and come to rank `next`, a beat at a time: a
// longer pause would be its own, and forgiven.
class Third {
 public:
  static constexpr Millis kTimeout{1000};

  void come_to(Rank next) { membership.on_connected(next, now, actions); }
  void lose_coordinator() { membership.on_closed(0, now, "closed its connection", actions); }
  void hear(Rank from, const wire::Message& message) {
    membership.on_message(from, message, now, actions);
  }
  bool believes_after(Millis time, Rank in) {
    for (; now <= began + time; now += membership.beat_interval())
      membership.on_tick(now, {}, actions);
    return membership.is_alive(in);
  }

 private:
  Time began = Time{} + std::chrono::hours(1);
  Time now = began;
  transport::Membership membership{
      {.rank = 3, .world_size = 4, .heartbeat_timeout = kTimeout, .addresses = {}}, began};
  transport::Membership::Actions actions;
};

TEST_CASE("the time to lead ends: a next coordinator that never beats is given up") {
  Third third;
  third.come_to(0);
  third.hear(0, wire::Lost{1, false, "rank 1 was silent"});
  third.lose_coordinator();
  third.come_to(2);
  third.hear(2, wire::Lost{0, false, "what it has heard itself is not that it leads"});
  CHECK(third.believes_after(Third::kTimeout * 2, 2));
  CHECK_FALSE(third.believes_after(Third::kTimeout * 3, 2));
}

TEST_CASE("that a next coordinator lets it in gives it no more time to lead") {
  Third third;
  third.come_to(0);
  third.lose_coordinator();
  REQUIRE(third.believes_after(Third::kTimeout * 9 / 10, 1));
  third.come_to(1);  // It was frozen, and others have given it up meanwhile.
  third.hear(1, wire::Lost{0, false, "it has heard so"});
  CHECK(third.believes_after(Third::kTimeout * 13 / 10, 1));
  CHECK_FALSE(third.believes_after(Third::kTimeout * 16 / 10, 1));
}

TEST_CASE("a next coordinator that beats leads for as long as it does") {
  Third third;
  third.come_to(0);
  third.lose_coordinator();
  third.come_to(1);
  for (Millis time{0}; time < Third::kTimeout * 5; time += Third::kTimeout / 2) {
    third.hear(1, wire::Heartbeat{});
    CHECK(third.believes_after(time, 1));
  }
}

TEST_CASE("who died with the coordinator is given up after one more heartbeat timeout") {
  Cluster cluster(4);
  cluster.freeze(3);  // Nothing tells the next coordinator so.
  cluster.kill(0);
  cluster.pass(Cluster::kHeartbeatTimeout * 16 / 10);
  CHECK(cluster.gone(1) == Ranks{0, 3});
  CHECK(cluster.gone(2) == Ranks{0, 3});
}

TEST_CASE("who died with the coordinator is lost as soon as its host says so") {
  Cluster cluster(5);
  cluster.seat(3).is_dead = true;  // No connection of it to the next coordinator ends.
  cluster.shrink(1, 7, {1, 2, 3, 4});
  cluster.kill(0);
  cluster.shrink(2, 7, {1, 2, 3, 4});
  cluster.shrink(4, 7, {1, 2, 3, 4});
  cluster.pass(Cluster::kHeartbeatTimeout * 6 / 10);
  for (const Rank rank : {1, 2, 4}) {
    CAPTURE(rank);
    CHECK(cluster.gone(rank) == Ranks{0, 3});
    REQUIRE(cluster.seat(rank).shrunk.size() == 1);
    CHECK(cluster.seat(rank).shrunk[0].survivors == Ranks{1, 2, 4});
  }
}

TEST_CASE("who has come to a new coordinator is not lost for being refused before") {
  Cluster cluster(3);
  cluster.kill(0);
  cluster.pass(Cluster::kHeartbeatTimeout);
  REQUIRE(cluster.are_connected(1, 2));
  transport::Membership::Actions actions;
  cluster.seat(1).membership.on_refused(2, Time{} + std::chrono::hours(2), actions);
  CHECK(cluster.seat(1).membership.is_alive(2));
}

}  // namespace
}  // namespace gradring::testing::membership_succession_test
