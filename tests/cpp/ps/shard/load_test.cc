// A shard that loads a checkpoint for a client: what becomes of it when that client is away.
#include <doctest/doctest.h>

#include "base/error.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::load_test {
namespace {

constexpr Millis kLongerThanGrace{5000};
constexpr std::uint64_t kAhead = 1'000'000;

// A table "t" of one float a row, in which row 1 is `value`.
std::vector<std::byte> checkpoint_of(float value) {
  ShardRig source;
  Guest guest = source.enter(0);
  source.ask(guest, make_table(sum_table("t", 1)));
  source.ask(guest, push("t", {1}, {value}));
  return source.snapshot();
}

// Has all of it beside what the shard has.
void stage(ShardRig& rig, Guest& loader, std::uint64_t number, float value) {
  rig.ask(loader, load(number, ""));
  rig.shard().begin_load(number);
  rig.shard().load_piece(checkpoint_of(value), number);
}

Values row_of(ShardRig& rig, Guest& guest) {
  const ps::Frame answer = rig.ask(guest, pull("t", {1}));
  return rows_of(answer.header, answer.payload, 1).rows;
}

TEST_CASE("a load ends with its client, but once it is prepared it waits for it to come back") {
  for (const bool is_prepared : {false, true}) {
    CAPTURE(is_prepared);
    ShardRig rig;
    Guest loader = rig.enter(5);
    stage(rig, loader, 1, 4);
    if (is_prepared) rig.shard().prepare_load(1);
    rig.shard().disconnected(loader.connection, rig.now);
    rig.tick_after(kLongerThanGrace);
    loader = rig.enter(5);
    if (is_prepared) {
      rig.shard().commit_load(false, 1);
      CHECK(row_of(rig, loader) == Values{4});
    } else {
      CHECK_THROWS_AS(rig.shard().prepare_load(1), Closed);
      CHECK_THROWS_AS(rig.shard().commit_load(false, 1), Closed);
    }
  }
}

TEST_CASE("what a lost client or an earlier process has prepared makes way for the next load") {
  for (const std::uint32_t next_client : {5u, 6u}) {
    CAPTURE(next_client);
    ShardRig rig;
    Guest loader = rig.enter(5);
    stage(rig, loader, 1, 4);
    rig.shard().prepare_load(1);
    Guest other = rig.enter(6);
    rig.ask(other, load(2, ""));
    CHECK_THROWS_AS(rig.shard().begin_load(2), InvalidArgument);
    rig.shard().disconnected(loader.connection, rig.now);
    if (next_client == 6) rig.tick_after(kLongerThanGrace);
    Guest next = rig.enter(next_client, 2);
    stage(rig, next, 3, 8);
    CHECK_THROWS_AS(rig.shard().commit_load(false, 1), Closed);
    rig.shard().commit_load(false, 3);
    CHECK(row_of(rig, next) == Values{8});
  }
}

TEST_CASE("many loads at once are each known until they end, and too many are refused") {
  constexpr std::uint64_t kMost = 256;
  ShardRig rig;
  Guest loader = rig.enter(5);
  stage(rig, loader, 1, 4);
  Guest others = rig.enter(6);
  for (std::uint64_t number = 2; number <= kMost; ++number) rig.ask(others, load(number, ""));
  CHECK(error_of(rig.ask(others, load(kMost + 1, ""))) == ErrorKind::kInvalidArgument);
  CHECK(rig.shard().take_jobs().size() == kMost);
  rig.shard().prepare_load(1);
  rig.shard().commit_load(false, 1);
  CHECK(row_of(rig, loader) == Values{4});

  std::vector<ps::Answer> answers;
  for (std::uint64_t number = 1; number <= kMost; ++number)
    rig.shard().finish_job(number, "", {}, answers);
  rig.ask(others, load(1, ""));  // An answer was lost, and it is asked for again: not done again.
  CHECK(rig.shard().take_jobs().empty());
  rig.ask(others, load(kMost + 1, ""));
  CHECK(rig.shard().take_jobs().size() == 1);
}

void finish(ShardRig& rig, std::uint64_t number) {
  std::vector<ps::Answer> answers;
  rig.shard().finish_job(number, "", {}, answers);
}

// For good: as it says itself, or because a later process has its number.
void leave_for_good(ShardRig& rig, const Guest& loader, bool says_goodbye) {
  if (says_goodbye) {
    Request goodbye;
    goodbye.header.type = wire::PsType::kGoodbye;
    Guest leaving = loader;
    rig.ask(leaving, goodbye);
    rig.shard().disconnected(loader.connection, rig.now);
  } else {
    rig.enter(loader.client, 2);
  }
  CHECK(rig.shard().next_tick() <= rig.now);
  rig.tick_after(Millis{0});
}

TEST_CASE("a client that is gone for good takes along what it has staged or prepared") {
  for (const bool says_goodbye : {false, true})
    for (const bool is_prepared : {false, true}) {
      CAPTURE(says_goodbye);
      CAPTURE(is_prepared);
      ShardRig rig;
      Guest loader = rig.enter(5);
      stage(rig, loader, 1, 4);
      if (is_prepared) {
        finish(rig, 1);
        rig.shard().prepare_load(1);
      }
      leave_for_good(rig, loader, says_goodbye);
      CHECK_THROWS_AS(rig.shard().commit_load(false, 1), Closed);
    }
}

TEST_CASE("what a client was told to be done is done, though it is gone for good meanwhile") {
  for (const bool is_carried_out : {false, true}) {
    CAPTURE(is_carried_out);
    ShardRig rig;
    Guest loader = rig.enter(5);
    stage(rig, loader, 1, 4);
    finish(rig, 1);
    rig.shard().prepare_load(1);
    rig.ask(loader, load(2, "commit"));  // As all other shards were told.
    rig.enter(5, 2);
    rig.tick_after(Millis{0});
    if (is_carried_out) {
      rig.shard().commit_load(false, 1);
      Guest reader = rig.enter(6);
      CHECK(row_of(rig, reader) == Values{4});
    } else {
      finish(rig, 2);
      rig.tick_after(Millis{0});
      CHECK_THROWS_AS(rig.shard().commit_load(false, 1), Closed);
    }
  }
}

TEST_CASE("what is prepared waits a minute for its client, and not for ever") {
  for (const Millis away : {Millis{59'999}, Millis{60'000}}) {
    ShardRig rig;
    Guest loader = rig.enter(5);
    stage(rig, loader, 1, 4);
    finish(rig, 1);
    rig.shard().prepare_load(1);
    rig.shard().disconnected(loader.connection, rig.now);
    CHECK(rig.shard().next_tick() <= rig.now + Millis{60'000});
    rig.tick_after(away);
    rig.enter(5);
    if (away < Millis{60'000})
      rig.shard().commit_load(false, 1);
    else
      CHECK_THROWS_AS(rig.shard().commit_load(false, 1), Closed);
  }
}

TEST_CASE("what a client was told to be done is done, though it was killed and never comes back") {
  ShardRig rig;
  Guest loader = rig.enter(5);
  stage(rig, loader, 1, 4);
  finish(rig, 1);
  rig.shard().prepare_load(1);
  rig.ask(loader, load(2, "commit"));
  rig.shard().disconnected(loader.connection, rig.now);
  rig.tick_after(Millis{3'600'000});  // A server has its own snapshots, and its jobs before that.
  rig.shard().commit_load(false, 1);
  Guest reader = rig.enter(6);
  CHECK(row_of(rig, reader) == Values{4});
}

// A checkpoint of servers whose clock was far ahead, in which client 0 has done two things.
std::vector<std::byte> checkpoint_from_ahead() {
  ShardRig source;
  Guest guest = source.enter(0, kAhead);
  source.ask(guest, make_table(sum_table("t", 1)));
  source.ask(guest, push("t", {1}, {4}));
  return source.snapshot();
}

TEST_CASE("who connected before a load is no earlier process, whatever clock a checkpoint is of") {
  ShardRig rig;
  rig.load({checkpoint_from_ahead()}, false);
  CHECK(rig.shard().newest_incarnation() >= kAhead);  // Who comes from now on is later.
  ShardRig restarted;
  restarted.load({rig.snapshot()}, true);
  for (ShardRig* each : {&rig, &restarted}) {
    Guest worker = each->enter(0, 5);
    CHECK(worker.seq == 0);
    each->ask(worker, push("t", {1}, {2}));
    CHECK(row_of(*each, worker) == Values{6});
    CHECK_THROWS_AS(each->enter(0, 4), Closed);
    ShardRig again;
    again.load({each->snapshot()}, true);
    CHECK_THROWS_AS(again.enter(0, 4), Closed);
    worker = again.enter(0, 5);
    CHECK(worker.seq == 1);
    CHECK(row_of(again, worker) == Values{6});
    CHECK(again.enter(0, 6).seq == 0);
    CHECK_THROWS_AS(again.enter(0, 5), Closed);
  }
}

TEST_CASE("the very process that a checkpoint knows goes on where it was, whoever came before it") {
  for (const bool comes_second : {false, true}) {
    CAPTURE(comes_second);
    ShardRig rig;
    rig.load({checkpoint_from_ahead()}, false);
    const auto loaded = rig.snapshot();
    if (comes_second) {
      Guest before = rig.enter(0, 5);
      rig.ask(before, push("t", {1}, {2}));
    }
    Guest guest = rig.enter(0, kAhead);
    CHECK(guest.seq == 2);
    rig.ask(guest, push("t", {1}, {1}));
    CHECK_THROWS_AS(rig.enter(0, 5), Closed);
    ShardRig again;
    again.load({loaded}, true);
    again.replay(rig.journal.records);
    CHECK(again.enter(0, kAhead).seq == 3);
    CHECK_THROWS_AS(again.enter(0, 5), Closed);
  }
}

TEST_CASE("a cut waits for the process that is here, not for the one that a checkpoint knows") {
  ShardRig rig;
  rig.load({checkpoint_from_ahead()}, false);
  Guest saver = rig.enter(7);
  const ps::Frame frozen = rig.ask(saver, freeze(1, Millis{1000}));
  CHECK(ps::decode_positions(frozen.payload).empty());
  // Another shard has what client 0 did there in a call that is about to come here.
  CHECK(rig.send(saver, advance(1, Millis{1000}, {{0, 5, 1, {}}})).empty());
  Guest worker = rig.enter(0, 5);
  CHECK(rig.send(worker, push("t", {1}, {2})).size() == 2);
  CHECK(rig.send(worker, push("t", {1}, {2})).empty());
}

}  // namespace
}  // namespace gradring::testing::load_test
