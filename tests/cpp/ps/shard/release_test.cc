// What waits at a shard for a gate or for the end of a freeze: bounded while it waits, and let out
// in portions that a client has asked for and a server can hold.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/config.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::release_test {
namespace {

constexpr std::uint64_t kDomain = 42;
constexpr std::uint32_t kDim = 16384;
constexpr std::size_t kRowBytes = kDim * sizeof(float);
constexpr std::size_t kPulls = 200;  // Of a row each: three portions.

// Two workers of one domain. The first one waits for the second.
struct Pair {
  Pair() {
    rig.ask(waiting, make_table(sum_table("rows", 1)));
    rig.ask(waiting, make_table(sum_table("wide", kDim)));
    for (Guest* each : {&waiting, &other}) rig.ask(*each, clock(kDomain, 0, {2, false, 1}));
  }
  std::vector<ps::Answer> wait_at_gate(const std::string& table, const Ids& ids) {
    return rig.send(waiting, pull(table, ids, wire::Gate{kDomain, 1, 500, false}));
  }
  std::vector<ps::Answer> open_gate() {
    rig.ask(other, clock(kDomain, 1, {2, false, 1}));
    return rig.send(waiting, clock(kDomain, 1, {2, false, 1}));
  }

  ShardRig rig;
  Guest waiting = rig.enter(0);
  Guest other = rig.enter(1);
};

// Until nothing is kept back any more. Checks each portion; returns the requests answered.
std::vector<std::uint64_t> let_out(Pair& pair, std::vector<ps::Answer> portion) {
  std::vector<std::uint64_t> requests;
  while (true) {
    std::size_t bytes = 0;
    for (const ps::Answer& answer : portion) {
      if (answer.to != pair.waiting.connection || answer.payload().size() < kRowBytes) continue;
      requests.push_back(answer.frame.header.request);
      bytes += answer.payload().size();
    }
    CHECK(bytes < limits::kPsAnswerBytes + (1 << 20));
    if (!pair.rig.shard().has_more(pair.waiting.connection)) return requests;
    portion.clear();
    pair.rig.shard().go_on(pair.waiting.connection, pair.rig.now, portion);
  }
}

TEST_CASE("pulls that wait at a gate are bounded, and make room when it opens") {
  Pair pair;
  const Ids ids((1 << 20) / sizeof(std::uint64_t), 5);
  std::size_t sent = 0;
  for (; pair.rig.shard().takes_from(pair.waiting.connection) && sent < 100; ++sent)
    CHECK(pair.wait_at_gate("rows", ids).empty());
  CHECK(sent == limits::kPsHeldBytes >> 20);
  CHECK(pair.rig.shard().takes_from(pair.other.connection));
  SUBCASE("because the others have come") {
    CHECK(let_out(pair, pair.open_gate()).size() == sent);
  }
  SUBCASE("because their time is up") {
    CHECK(pair.rig.tick_after(Millis{600}).size() == sent);
  }
  CHECK(pair.rig.shard().takes_from(pair.waiting.connection));
}

TEST_CASE("an opened gate, or a freeze that ends, lets out no more than a client has room for") {
  Pair pair;
  std::vector<ps::Answer> portion;
  SUBCASE("a gate") {
    for (std::size_t at = 0; at < kPulls; ++at) CHECK(pair.wait_at_gate("wide", {at}).empty());
    portion = pair.open_gate();
    SUBCASE("and the domain goes on") {}
    SUBCASE("and the domain ends, and time passes") {
      for (Guest* each : {&pair.other, &pair.waiting})
        CHECK(pair.rig.send(*each, leave(kDomain)).size() == 1);
      CHECK(pair.rig.tick_after(Millis{600}).empty());
    }
  }
  SUBCASE("a freeze, in the order of the requests") {
    pair.rig.ask(pair.other, freeze(5, Millis{10000}));
    CHECK(pair.rig.send(pair.waiting, push("rows", {1}, {8})).empty());
    for (std::size_t at = 0; at < kPulls; ++at)
      CHECK(pair.rig.send(pair.waiting, pull("wide", {at})).empty());
    portion = pair.rig.send(pair.other, thaw(5));
  }
  CHECK(pair.rig.shard().has_more(pair.waiting.connection));
  const auto requests = let_out(pair, std::move(portion));
  CHECK(requests.size() == kPulls);
  CHECK(std::is_sorted(requests.begin(), requests.end()));
  CHECK(pair.rig.shard().takes_from(pair.waiting.connection));
}

TEST_CASE("who leaves while answers are kept back for it takes them along") {
  Pair pair;
  for (std::size_t at = 0; at < kPulls; ++at) CHECK(pair.wait_at_gate("wide", {at}).empty());
  pair.open_gate();
  pair.rig.shard().disconnected(pair.waiting.connection, pair.rig.now);
  CHECK_FALSE(pair.rig.shard().has_more(pair.waiting.connection));
  CHECK(pair.rig.tick_after(Millis{600}).empty());
}

}  // namespace
}  // namespace gradring::testing::release_test
