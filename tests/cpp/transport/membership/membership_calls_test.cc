// What ranks say in heartbeats of the calls that they are in, and what the coordinator makes of it.
#include "transport/membership/membership.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "support/cluster.h"

namespace gradring::testing::membership_calls_test {
namespace {

wire::CallState in_call(std::uint64_t seq, std::uint64_t count) {
  wire::CallState state;
  state.communicator = 7;
  state.seq = seq;
  state.in_progress = true;
  state.call.op = OpKind::kAllReduce;
  state.call.dtype = DType::kFloat32;
  state.call.count = count;
  return state;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every rank ends with a mismatch that shows all of this.
void check_that_all_hear(Cluster& cluster, std::initializer_list<const char*> parts) {
  for (Rank rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    REQUIRE(cluster.seat(rank).aborted.size() == 1);
    const Failure& failure = cluster.seat(rank).aborted[0].failure;
    CHECK(failure.kind == ErrorKind::kMismatch);
    for (const char* part : parts) CHECK(contains(failure.text, part));
  }
}

TEST_CASE("different calls in one operation are found in the heartbeats, and both are shown") {
  Cluster cluster(3);
  cluster.seat(1).calls = {in_call(4, 100)};
  cluster.seat(2).calls = {in_call(4, 101)};
  cluster.pass(Cluster::kHeartbeatTimeout);
  check_that_all_hear(cluster, {"rank 1 called all_reduce #4 (float32 x 100",
                                "rank 2 called all_reduce #4 (float32 x 101"});
}

TEST_CASE("a rank that is some calls further is compared by what it called before") {
  Cluster cluster(3);
  const auto call_of = [](std::uint64_t count) { return in_call(0, count).call; };
  cluster.seat(1).calls = {in_call(6, 100)};
  cluster.seat(1).calls[0].before = {call_of(105), call_of(104), call_of(103)};
  SUBCASE("and found where that was another one") {
    cluster.seat(2).calls = {in_call(4, 101)};
    cluster.pass(Cluster::kHeartbeatTimeout);
    check_that_all_hear(cluster, {"rank 1 called all_reduce #4 (float32 x 104",
                                  "rank 2 called all_reduce #4 (float32 x 101"});
  }
  SUBCASE("and left alone where it was the same") {
    cluster.seat(2).calls = {in_call(4, 104)};
    cluster.pass(Cluster::kHeartbeatTimeout * 2);
    CHECK(cluster.seat(0).aborted.empty());
  }
}

// Of communicators that this rank is in no call of; more of them than a heartbeat holds.
std::vector<wire::CallState> many_idle() {
  std::vector<wire::CallState> calls;
  for (std::uint64_t id = 1000; id < 1000 + 2 * wire::kCallsPerHeartbeat; ++id) {
    calls.push_back(in_call(1, 1));
    calls.back().communicator = id;
    calls.back().in_progress = false;
  }
  return calls;
}

TEST_CASE("different calls are found within two beats, however many communicators are open") {
  Cluster cluster(2);
  for (const Rank rank : {0, 1}) {
    cluster.seat(rank).calls = many_idle();
    cluster.seat(rank).calls.push_back(in_call(4, rank == 0 ? 100 : 101));
  }
  cluster.pass(cluster.seat(0).membership.beat_interval() * 2);
  for (const Rank rank : {0, 1}) {
    CAPTURE(rank);
    REQUIRE(cluster.seat(rank).aborted.size() == 1);
    CHECK(cluster.seat(rank).aborted[0].failure.kind == ErrorKind::kMismatch);
    CHECK(cluster.seat(rank).aborted[0].communicator == 7);
  }
}

TEST_CASE("of many communicators those in no call are told of in turn") {
  Cluster cluster(2);
  cluster.seat(0).calls = {in_call(4, 100)};
  cluster.seat(1).calls = many_idle();
  // With other members than rank 0 counts, and the last of all that rank 1 has.
  cluster.seat(1).calls.push_back(in_call(4, 100));
  cluster.seat(1).calls.back().in_progress = false;
  cluster.seat(1).calls.back().members_hash = 9;
  cluster.pass(cluster.seat(0).membership.beat_interval() * 4);
  REQUIRE(cluster.seat(0).aborted.size() == 1);
  CHECK(cluster.seat(0).aborted[0].failure.kind == ErrorKind::kMismatch);
}

TEST_CASE("ranks in different operations, or out of their calls, are no mismatch") {
  Cluster cluster(3);
  cluster.seat(0).calls = {in_call(4, 100)};
  cluster.seat(1).calls = {in_call(5, 101)};
  cluster.seat(2).calls = {in_call(4, 102)};
  cluster.seat(2).calls[0].in_progress = false;
  cluster.pass(Cluster::kHeartbeatTimeout * 2);
  CHECK(cluster.seat(0).aborted.empty());
}

TEST_CASE("ranks that count others as members are found, even if one of them waits for nothing") {
  Cluster cluster(3);
  for (Rank rank : {1, 2}) {
    cluster.seat(rank).calls = {in_call(4, 100)};
    cluster.seat(rank).calls[0].members_hash = static_cast<std::uint64_t>(rank);
    cluster.seat(rank).calls[0].made_by = rank == 1 ? "subgroup([1], 'a')" : "subgroup([2], 'a')";
  }
  cluster.seat(1).calls[0].in_progress = false;
  cluster.seat(1).calls[0].seq = 9;
  cluster.pass(Cluster::kHeartbeatTimeout);
  check_that_all_hear(cluster, {"rank 2 called subgroup([2], 'a'), rank 1 called subgroup([1]"});
}

TEST_CASE("a deadline that passed names the ranks that never came") {
  Cluster cluster(4);
  for (const Rank rank : {0, 1, 3}) cluster.seat(rank).calls = {in_call(4, 100)};
  cluster.seat(2).calls = {in_call(3, 100)};
  cluster.seat(2).calls[0].in_progress = false;
  cluster.pass(Cluster::kHeartbeatTimeout);
  transport::Membership::Actions actions;
  cluster.seat(0).membership.abort({7, 4, 0, {ErrorKind::kTimedOut, -1, "not finished"}}, actions);
  REQUIRE(actions.aborted.size() == 1);
  CHECK(contains(actions.aborted[0].failure.text, "rank 2"));
}

TEST_CASE("of a deadline that passed between two heartbeats they name nobody") {
  Cluster cluster(3);
  for (const Rank rank : {0, 1, 2}) cluster.seat(rank).calls = {in_call(3, 100)};
  SUBCASE("where they are older than the operation") {}
  SUBCASE("where they are older than the communicator") {
    cluster.seat(1).calls.clear();
  }
  cluster.pass(Cluster::kHeartbeatTimeout);
  transport::Membership::Actions actions;
  cluster.seat(0).membership.abort({7, 4, 1, {ErrorKind::kTimedOut, -1, "not finished"}}, actions);
  REQUIRE(actions.aborted.size() == 1);
  CHECK(actions.aborted[0].failure.text == "not finished");
}

TEST_CASE("of an operation that ranks wait in for others somebody is told after a minute") {
  Cluster cluster(4);
  for (const Rank rank : {1, 3}) cluster.seat(rank).calls = {in_call(4, 100)};
  for (const Rank rank : {0, 2}) cluster.seat(rank).calls = {in_call(3, 100)};
  cluster.seat(2).calls[0].in_progress = false;
  cluster.seat(0).calls.clear();  // No member.
  cluster.pass(std::chrono::seconds(59));
  for (Rank rank = 0; rank < 4; ++rank) CHECK(cluster.seat(rank).warnings.empty());
  cluster.pass(std::chrono::seconds(5));
  REQUIRE(cluster.seat(0).warnings.size() == 1);
  CHECK(cluster.seat(0).warnings[0] ==
        "all_reduce #4 (float32 x 100, sum) has waited 60 s for rank 2, whose last was all_reduce "
        "#3 (float32 x 100, sum)");
  cluster.pass(std::chrono::minutes(5));  // Then after two, and after four.
  REQUIRE(cluster.seat(0).warnings.size() == 3);
  CHECK(contains(cluster.seat(0).warnings[2], "has waited 240 s for rank 2"));
  for (Rank rank = 1; rank < 4; ++rank) CHECK(cluster.seat(rank).warnings.empty());
}

TEST_CASE("whose last call is not known is told of by its number") {
  Cluster cluster(3);
  for (const Rank rank : {0, 1}) cluster.seat(rank).calls = {in_call(9, 100)};
  cluster.seat(2).calls = {in_call(8, 0)};
  cluster.seat(2).calls[0].in_progress = false;
  cluster.seat(2).calls[0].call = {};
  cluster.pass(std::chrono::seconds(61));
  REQUIRE(cluster.seat(0).warnings.size() == 1);
  CHECK(contains(cluster.seat(0).warnings[0], " s for rank 2, whose last was #8"));
}

TEST_CASE("who all are in an operation that takes long wait for nobody") {
  Cluster cluster(3);
  for (const Rank rank : {0, 1, 2}) cluster.seat(rank).calls = {in_call(4, 100)};
  cluster.pass(std::chrono::minutes(3));
  CHECK(cluster.seat(0).warnings.empty());
}

TEST_CASE("operations that each take less than a minute are not taken for one") {
  Cluster cluster(2);
  for (std::uint64_t seq = 4; seq < 10; ++seq) {
    cluster.seat(1).calls = {in_call(seq, 100)};
    cluster.seat(0).calls = {in_call(seq - 1, 100)};
    cluster.seat(0).calls[0].in_progress = false;
    cluster.pass(std::chrono::seconds(50));
  }
  CHECK(cluster.seat(0).warnings.empty());
}

TEST_CASE("of many ranks that are waited for the first ones are named") {
  Cluster cluster(20);
  cluster.seat(0).calls = {in_call(1, 100)};
  for (Rank rank = 1; rank < 20; ++rank) {
    cluster.seat(rank).calls = {in_call(0, 100)};
    cluster.seat(rank).calls[0].in_progress = false;
  }
  cluster.pass(std::chrono::seconds(61));
  REQUIRE(cluster.seat(0).warnings.size() == 1);
  CHECK(contains(cluster.seat(0).warnings[0], "s for rank 1, rank 2, rank 3"));
  CHECK(contains(cluster.seat(0).warnings[0], "rank 8 and 11 more"));
}

}  // namespace
}  // namespace gradring::testing::membership_calls_test
