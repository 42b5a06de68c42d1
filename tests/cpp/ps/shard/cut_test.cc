// Cuts: a freeze holds back exactly what does not belong to the cut.
#include <doctest/doctest.h>

#include "support/ps/shard_rig.h"

namespace gradring::testing::cut_test {
namespace {

using wire::PsType;

constexpr Millis kLong{1000};

TEST_CASE("pulls that wait and rounds that are open survive a load without harm") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(sum_table("t", 4)));
  rig.ask(guest, clock(9, 0, {2, true, 1}));
  rig.ask(guest, push("t", {1}, {1, 2, 3, 4}, {.round = wire::Round{9, 0}}));
  ShardRig source;
  Guest other = source.enter(0);
  source.ask(other, make_table(sum_table("t", 64)));
  rig.load({source.snapshot()}, false);
  Guest second = rig.enter(1);
  rig.ask(guest, clock(9, 1, {2, true, 1}));
  rig.ask(second, clock(9, 1, {2, true, 1}));
  const ps::Frame answer = rig.ask(guest, pull("t", {1}));
  CHECK(rows_of(answer.header, answer.payload, 64).rows == Values(64, 0));
}

TEST_CASE("a freeze holds back changes, and reads go on") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  const ps::Frame frozen = rig.ask(saver, freeze(1, kLong));
  const auto positions = ps::decode_positions(frozen.payload);
  REQUIRE(positions.size() == 1);
  CHECK(positions[0].client == 0);
  CHECK(positions[0].seq == 1);
  CHECK(rig.ask(saver, pull("t", {1})).header.type == PsType::kRows);
  const ps::Frame done_before = rig.frame_of(guest, make_table(sum_table("t", 1)));
  CHECK(rig.send_frame(guest, done_before).empty());
  // Thawed by the cut, in which it is not.
  const auto answers = rig.send(saver, cut(1, "{}"));
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].to == guest.connection);
  REQUIRE(rig.shard().take_jobs().size() == 1);
}

TEST_CASE("advance lets through what belongs to the cut and nothing else") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(guest, push("t", {1}, {1})).empty());
  CHECK(rig.send(guest, push("t", {1}, {10})).empty());
  CHECK(rig.send(guest, pull("t", {1})).empty());  // It follows them.
  // Another shard has seen its second request.
  const auto answers = rig.send(saver, advance(1, kLong, {{0, 1, 2, {}}}));
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].to == guest.connection);
  CHECK(answers[1].to == saver.connection);
  CHECK(text_of(answers[1].frame) == "");
  const auto others = rig.send(saver, cut(1, ""));
  REQUIRE(others.size() == 3);
  CHECK(rows_of(others[2].frame.header, others[2].frame.payload, 1).rows == Values{11});
  ps::SnapshotBytes bytes;
  while (rig.shard().next_snapshot_piece(1, 64, bytes)) {
  }
  rig.shard().end_snapshot(1);
  ShardRig restored;
  restored.load({{bytes.view().begin(), bytes.view().end()}}, true);
  Guest reader = restored.enter(7);
  const ps::Frame rows = restored.ask(reader, pull("t", {1}));
  CHECK(rows_of(rows.header, rows.payload, 1).rows == Values{1});
}

TEST_CASE("advance waits for a client that this shard has not met yet") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, advance(1, kLong, {{3, 1, 1, {}}})).empty());
  Guest late = rig.enter(3);
  const auto answers = rig.send(late, make_table(sum_table("t", 1)));
  REQUIRE(answers.size() == 2);
  CHECK(text_of(answers[1].frame) == "");
}

TEST_CASE("advance says whose requests never came") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, advance(1, Millis{300}, {{0, 1, 4, {}}})).empty());
  const auto answers = rig.tick_after(Millis{300});
  REQUIRE(answers.size() == 1);
  CHECK(text_of(answers[0].frame) == "client 0 (3 requests)");
  CHECK(rig.ask(saver, cut(1, "")).header.type == PsType::kDone);
}

TEST_CASE("of a client that was replaced meanwhile nothing is waited for or let through") {
  ShardRig rig;
  Guest first = rig.enter(0, 1);
  rig.ask(first, make_table(sum_table("t", 1)));
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  Guest second = rig.enter(0, 2);
  CHECK(text_of(rig.ask(saver, advance(1, kLong, {{0, 1, 4, {}}}))) == "");
  CHECK(rig.send(second, push("t", {1}, {1})).empty());
}

TEST_CASE("a freeze melts by itself, and the saver is told so") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(guest, make_table(sum_table("t", 1))).empty());
  CHECK(rig.tick_after(kLong).size() == 1);
  CHECK(error_of(rig.ask(saver, cut(1, ""))) == ErrorKind::kTimedOut);
  CHECK(error_of(rig.ask(saver, advance(1, kLong, {}))) == ErrorKind::kTimedOut);
}

TEST_CASE("a cut, a load and a job that are asked for again after a lost answer happen once") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  const ps::Frame first = rig.ask(saver, cut(1, "save"));
  const ps::Frame second = rig.ask(saver, cut(1, "save"));
  CHECK(second.header.type == PsType::kDone);
  CHECK(second.payload == first.payload);
  CHECK(rig.shard().take_jobs().size() == 1);
  rig.ask(saver, load(2, "load"));
  CHECK(rig.shard().take_jobs().size() == 1);
  rig.ask(saver, load(2, "load"));
  CHECK(rig.shard().take_jobs().empty());
  CHECK(rig.send(saver, job(2)).empty());
  std::vector<ps::Answer> answers;
  rig.shard().finish_job(2, "result", {}, answers);
  REQUIRE(answers.size() == 1);
  CHECK(text_of(answers[0].frame) == "result");
  CHECK(text_of(rig.ask(saver, job(2))) == "result");
}

TEST_CASE("a job that a restarted server knows nothing of is an error, not a wait") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  CHECK(error_of(rig.ask(saver, job(7))) == ErrorKind::kPeerLost);
}

TEST_CASE("the saver's own changes do not keep its cut from happening") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, push("t", {1}, {1})).empty());  // From another thread of the same client.
  CHECK(rig.shard().takes_from(saver.connection));
  CHECK(text_of(rig.ask(saver, advance(1, kLong, {{5, 1, 1, {}}}))) == "");
  CHECK(rig.send(saver, cut(1, "")).size() == 2);
}

}  // namespace
}  // namespace gradring::testing::cut_test
