// What the coordinator finds when it compares what the ranks say they are calling.
#include <doctest/doctest.h>

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

TEST_CASE("different calls in one operation are found in the heartbeats, and both are shown") {
  Cluster cluster(3);
  cluster.seat(1).calls = {in_call(4, 100)};
  cluster.seat(2).calls = {in_call(4, 101)};
  cluster.pass(Cluster::kHeartbeatTimeout);
  for (Rank rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    REQUIRE(cluster.seat(rank).aborted.size() == 1);
    const Failure& failure = cluster.seat(rank).aborted[0].failure;
    CHECK(failure.kind == ErrorKind::kMismatch);
    CHECK(contains(failure.text, "rank 1 called all_reduce #4 (float32 x 100"));
    CHECK(contains(failure.text, "rank 2 called all_reduce #4 (float32 x 101"));
  }
}

TEST_CASE("a rank that is some calls further is compared by what it called before") {
  Cluster cluster(3);
  const auto call_of = [](std::uint64_t count) { return in_call(0, count).call; };
  cluster.seat(1).calls = {in_call(6, 100)};
  cluster.seat(1).calls[0].before = {call_of(105), call_of(104), call_of(103)};
  SUBCASE("and found where that was another one") {
    cluster.seat(2).calls = {in_call(4, 101)};
    cluster.pass(Cluster::kHeartbeatTimeout);
    for (Rank rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      REQUIRE(cluster.seat(rank).aborted.size() == 1);
      const Failure& failure = cluster.seat(rank).aborted[0].failure;
      CHECK(failure.kind == ErrorKind::kMismatch);
      CHECK(contains(failure.text, "rank 1 called all_reduce #4 (float32 x 104"));
      CHECK(contains(failure.text, "rank 2 called all_reduce #4 (float32 x 101"));
    }
  }
  SUBCASE("and left alone where it was the same") {
    cluster.seat(2).calls = {in_call(4, 104)};
    cluster.pass(Cluster::kHeartbeatTimeout * 2);
    CHECK(cluster.seat(0).aborted.empty());
  }
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
  for (Rank rank = 0; rank < 3; ++rank) {
    CAPTURE(rank);
    REQUIRE(cluster.seat(rank).aborted.size() == 1);
    const Failure& failure = cluster.seat(rank).aborted[0].failure;
    CHECK(failure.kind == ErrorKind::kMismatch);
    CHECK(contains(failure.text, "rank 2 called subgroup([2], 'a'), rank 1 called subgroup([1]"));
  }
}

}  // namespace
}  // namespace gradring::testing::membership_calls_test
