// Cuts and snapshots that something comes between: another shard's refusal, a load, another writer.
#include <doctest/doctest.h>

#include "support/ps/shard_rig.h"

namespace gradring::testing::cut_ends_test {
namespace {

using wire::PsType;

constexpr Millis kLong{1000};

TEST_CASE("a cut that another shard has refused ends its snapshot, and the next one is taken") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  rig.ask(saver, cut(1, ""));
  CHECK(error_of(rig.ask(saver, freeze(2, kLong))) == ErrorKind::kInvalidArgument);
  CHECK(rig.ask(saver, thaw(2)).header.type == PsType::kDone);  // Of another cut.
  ps::SnapshotBytes bytes;
  CHECK(rig.shard().next_snapshot_piece(1, 1, bytes));
  CHECK(rig.ask(saver, thaw(1)).header.type == PsType::kDone);
  CHECK_THROWS_AS(rig.shard().next_snapshot_piece(1, 1, bytes), InvalidArgument);
  CHECK(rig.ask(saver, freeze(2, kLong)).header.type == PsType::kFrozen);
  CHECK(rig.ask(saver, cut(2, "")).header.type == PsType::kDone);
  CHECK(rig.shard().next_snapshot_piece(2, 1, bytes));
}

TEST_CASE("who writes one snapshot can neither read nor end another one") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  rig.ask(saver, cut(1, ""));
  rig.shard().begin_load();
  rig.shard().commit_load(false);  // Ends it; the log, say, begins one of its own.
  REQUIRE(rig.shard().begin_snapshot());
  ps::SnapshotBytes bytes;
  CHECK_THROWS_AS(rig.shard().next_snapshot_piece(1, 1, bytes), InvalidArgument);
  rig.shard().end_snapshot(1);
  CHECK(rig.shard().has_own_snapshot());
  CHECK(rig.shard().next_snapshot_piece(ps::Shard::kOwnSnapshot, 1, bytes));
}

TEST_CASE("a load within a freeze ends it: there is no cut through two histories") {
  ShardRig rig;
  enter_with_table(rig, 0);
  Guest other = rig.enter(1);
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, advance(1, kLong, {{0, 1, 9, {}}})).empty());
  rig.shard().begin_load();
  rig.shard().commit_load(false);
  CHECK(error_of(rig.ask(saver, cut(1, ""))) == ErrorKind::kTimedOut);
  CHECK(rig.send(other, make_table(sum_table("u", 1))).empty());
  CHECK(rig.shard().next_tick() <= rig.now);
  CHECK(rig.tick_after(Millis{0}).size() == 2);  // The saver's advance, and what had waited.
}

TEST_CASE("a freeze that a load has ended is in nobody's way, its own saver's neither") {
  ShardRig rig;
  enter_with_table(rig, 0);
  Guest other = rig.enter(1);
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(other, make_table(sum_table("u", 1))).empty());
  rig.shard().begin_load();
  rig.shard().commit_load(false);
  // The first shard is asked twice; what had waited is let go first, and is in the cut.
  const auto answers = rig.send(saver, freeze(1, kLong));
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].frame.header.type == PsType::kFrozen);
  CHECK(rig.ask(saver, cut(1, "")).header.type == PsType::kDone);
}

// A shard that client 5 has frozen for long; client 0's push waits for that.
struct Frozen {
  ShardRig rig;
  Guest worker = enter_with_table(rig, 0);
  Guest saver = rig.enter(5);

  Frozen() {
    rig.ask(saver, freeze(1, Millis{60'000}));
    CHECK(rig.send(worker, push("t", {1}, {1, 1})).empty());
  }
};

TEST_CASE("a freeze ends at once when its saver is gone for good") {
  Frozen frozen;
  ShardRig& rig = frozen.rig;
  CHECK(rig.send(frozen.saver, advance(1, kLong, {{3, 1, 9, {}}})).empty());
  SUBCASE("because it has left") {
    Request goodbye;
    goodbye.header.type = PsType::kGoodbye;
    rig.ask(frozen.saver, goodbye);
    rig.shard().disconnected(frozen.saver.connection, rig.now);
  }
  SUBCASE("because a later process has come in its place") {
    rig.enter(5, 2);
  }
  CHECK(rig.shard().next_tick() <= rig.now);
  CHECK(rig.tick_after(Millis{0}).size() == 2);  // Its advance, and the push.
  CHECK(pulled(rig, frozen.worker, {1}) == Values{1, 1});
  Guest next = rig.enter(6);
  CHECK(rig.ask(next, freeze(2, kLong)).header.type == PsType::kFrozen);
}

TEST_CASE("a saver without a connection keeps others waiting for a second, and no longer") {
  Frozen frozen;
  ShardRig& rig = frozen.rig;
  rig.shard().disconnected(frozen.saver.connection, rig.now);
  CHECK(rig.tick_after(Millis{999}).empty());
  SUBCASE("so it goes on with its cut where it is back in time") {
    frozen.saver = rig.enter(5);
    CHECK(rig.tick_after(Millis{5000}).empty());
    CHECK(rig.ask(frozen.saver, advance(1, kLong, {})).header.type == PsType::kText);
    CHECK(rig.send(frozen.saver, cut(1, "")).size() == 2);  // And the push is done behind it.
  }
  SUBCASE("and is told that it comes too late") {
    CHECK(rig.shard().next_tick() <= rig.now + Millis{1});
    CHECK(rig.tick_after(Millis{1}).size() == 1);  // The push is done.
    frozen.saver = rig.enter(5);
    const ps::Frame answer = rig.ask(frozen.saver, cut(1, ""));
    CHECK(error_of(answer) == ErrorKind::kTimedOut);
    CHECK(text_of(answer).find("had no connection here") != std::string::npos);
  }
}

TEST_CASE("after a load no cut waits for what other shards had before it") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  guest.tail = {1, 40};  // Of a shard that has lost it since.
  rig.ask(guest, make_table(sum_table("t", 1)));
  Guest saver = rig.enter(5);
  const auto tail_of_0 = [&](std::uint64_t number) {
    const ps::Frame frozen = rig.ask(saver, freeze(number, kLong));
    rig.ask(saver, thaw(number));
    return ps::decode_positions(frozen.payload).at(0).tail;
  };
  CHECK(tail_of_0(1) == wire::Tail{1, 40});
  rig.shard().begin_load();
  rig.shard().commit_load(false);
  CHECK(tail_of_0(2).empty());
}

}  // namespace
}  // namespace gradring::testing::cut_ends_test
