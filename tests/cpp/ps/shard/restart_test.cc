// What a shard knows of its clients after a restart: from a snapshot, or from its journal.
#include <doctest/doctest.h>

#include "base/config.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::restart_test {
namespace {

constexpr std::uint64_t kDomain = 9;
constexpr ps::ClockPayload kBound{2, false, 1};

TEST_CASE("a worker replaced by a process that has done nothing yet is given up after a restart") {
  ShardRig rig;
  Guest first = enter_with_table(rig, 0, 1);
  Guest other = rig.enter(1);
  for (Guest* each : {&first, &other}) rig.ask(*each, clock(kDomain, 0, kBound));
  rig.shard().disconnected(first.connection, rig.now);
  rig.enter(0, 2);
  const auto saved = rig.snapshot();

  ShardRig again;
  again.load({saved}, true);
  CHECK(again.snapshot() == saved);
  Guest waiting = again.enter(1);
  again.ask(waiting, clock(kDomain, 1, kBound));
  CHECK(again.send(waiting, pull("t", {1}, wire::Gate{kDomain, 1, 60'000, false})).empty());
  CHECK(again.shard().next_tick() <= again.now);
  CHECK(again.tick_after(Millis{0}).empty());  // From now on it may come back.
  SUBCASE("and gates open") {
    const auto answers = again.tick_after(Millis{1000});
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].frame.header.type == wire::PsType::kRows);
    ShardRig third;
    third.load({saved}, true);
    third.replay(again.journal.records);
    CHECK(third.shard().stats().find("\"presence\":\"lost\"") != std::string::npos);
  }
  SUBCASE("but goes on where it comes back") {
    Guest second = again.enter(0, 2);
    CHECK(second.seq == 0);
    CHECK(again.tick_after(Millis{1000}).empty());
    const auto answers = again.send(second, clock(kDomain, 1, kBound));
    REQUIRE(answers.size() == 2);
    CHECK(answers[1].frame.header.type == wire::PsType::kRows);
  }
}

// Answers with a page from the beginning.
wire::PsHeader page(ShardRig& rig, Guest& guest) {
  Request read;
  read.header.type = wire::PsType::kReadRows;
  read.header.table = ps::table_id("t");
  read.header.b = 2;
  return rig.ask(guest, read).header;
}

TEST_CASE("who reads rows page by page hears that they lie in other places by now") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  for (std::uint64_t id = 0; id < 9; ++id) rig.ask(guest, push("t", {id}, {1, 1}));
  const wire::PsHeader first = page(rig, guest);
  CHECK(first.b == 1);
  CHECK(page(rig, guest).seq == first.seq);
  const auto saved = rig.snapshot();
  SUBCASE("after a restart") {
    ShardRig again(0, 1, 78);
    again.load({saved}, true);
    Guest reader = again.enter(1);
    CHECK(page(again, reader).seq != first.seq);
  }
  SUBCASE("after a load") {
    rig.load({saved}, false);
    CHECK(page(rig, guest).seq != first.seq);
  }
}

TEST_CASE("a client that makes room after its process was replaced is forgotten in a replay, too") {
  constexpr std::uint32_t kFirst = 1u << 31;
  ShardRig rig;
  rig.snapshot();  // Its client is one of so many.
  Guest before = rig.enter(kFirst, 1);
  rig.ask(before, make_table(sum_table("t", 1)));
  Guest after = rig.enter(kFirst, 2);
  for (std::uint32_t client = 1; client + 1 < limits::kPsClients; ++client)
    rig.enter(kFirst + client);
  rig.shard().disconnected(after.connection, rig.now);
  rig.tick_after(Millis{5000});
  Guest next = rig.enter(7);
  rig.ask(next, make_table(sum_table("t", 1)));
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
}

}  // namespace
}  // namespace gradring::testing::restart_test
