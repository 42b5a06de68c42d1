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
