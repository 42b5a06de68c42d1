// What a shard answers to a push that comes again, because the first answer was lost.
#include <doctest/doctest.h>

#include <limits>
#include <numeric>

#include "support/ps/shard_rig.h"

namespace gradring::testing::repeated_test {
namespace {

using wire::PsType;

Values rows_after(const ps::Answer& answer) {
  return floats_of(std::span(answer.frame.payload).subspan(ps::kOutcomeBytes));
}

TEST_CASE("a repeated push that asked for a few rows gets them as they were right after it") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame first = rig.frame_of(guest, push("t", {5}, {1, 2}, {.returns_rows = true}));
  const auto at_once = rig.send_frame(guest, first);
  CHECK(rows_after(at_once[0]) == Values{1, 2});
  Guest other = rig.enter(1);
  rig.ask(other, push("t", {5}, {10, 20}));
  // From the checkpoint and from the log as well.
  ShardRig loaded;
  loaded.load({rig.snapshot()}, true);
  ShardRig replayed;
  replayed.replay(rig.journal.records);
  for (ShardRig* place : {&rig, &loaded, &replayed}) {
    Guest back = place->enter(0);
    const auto again = place->send_frame(back, first);
    CHECK(rows_after(again[0]) == Values{1, 2});
    CHECK(again[0].frame.header.a == at_once[0].frame.header.a);
    CHECK(again[0].frame.header.b == at_once[0].frame.header.b);
    CHECK(pulled(*place, back, {5}) == Values{11, 22});
  }
}

TEST_CASE("a repeated push is told the numbers of the first time, however many its rows are") {
  for (const bool returns_rows : {false, true}) {
    for (const std::size_t rows : {2u, 1000u}) {
      CAPTURE(returns_rows);
      CAPTURE(rows);
      ShardRig rig;
      Guest guest = enter_with_table(rig, 0);
      rig.ask(guest, push("t", {5}, {1, 2}));
      Ids ids(rows);
      std::iota(ids.begin(), ids.end(), 100);
      Values gradients(rows * kSumsDim, 1);
      gradients[3] = std::numeric_limits<float>::quiet_NaN();
      const ps::Frame frame =
          rig.frame_of(guest, push("t", ids, gradients, {.returns_rows = returns_rows}));
      for (int time = 0; time < 3; ++time) {
        const ps::Frame answer = rig.send_frame(guest, frame)[0].frame;
        wire::Reader in(answer.payload);
        const ps::Outcome outcome = ps::get_outcome(in);
        CHECK(outcome.refused == 1);
        CHECK(outcome.staleness == 1);  // It has seen none.
        CHECK(answer.payload.size() ==
              ps::kOutcomeBytes + (returns_rows ? rows * kSumsDim * sizeof(float) : 0));
      }
    }
  }
}

TEST_CASE("a push that asks is told which rows were skipped, also when it comes again") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Request request = push("t", {7, 8, 9}, {1, 2, nan, 0, 3, 4}, {.returns_rows = true});
  request.header.flags |= wire::kTellsSkipped;
  const ps::Frame frame = rig.frame_of(guest, request);
  for (int time = 0; time < 2; ++time) {
    const ps::Frame answer = rig.send_frame(guest, frame)[0].frame;
    REQUIRE((answer.header.flags & wire::kTellsSkipped) != 0);
    wire::Reader in(answer.payload);
    ps::get_outcome(in);
    CHECK(ps::get_skipped(in, 3) == std::vector<std::uint64_t>{0b010});
    CHECK(floats_of(in.take(in.left())) == Values{1, 2, 0, 0, 3, 4});
  }
  Request whole = push("t", {7}, {1, 2});
  whole.header.flags |= wire::kTellsSkipped;
  const ps::Frame answer = rig.ask(guest, whole);
  CHECK((answer.header.flags & wire::kTellsSkipped) == 0);
  CHECK(answer.payload.size() == ps::kOutcomeBytes);
}

TEST_CASE("as many small answers are remembered as one client can have under way") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame oldest = rig.frame_of(guest, push("t", {5}, {1, 2}, {.returns_rows = true}));
  rig.send_frame(guest, oldest);
  for (int i = 1; i < 256; ++i) rig.ask(guest, push("t", {5}, {1, 2}, {.returns_rows = true}));
  CHECK(rows_after(rig.send_frame(guest, oldest)[0]) == Values{1, 2});
}

TEST_CASE("a repeated push that asked for many rows gets them as they are now") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  Ids ids(100);
  std::iota(ids.begin(), ids.end(), 1);
  const ps::Frame first =
      rig.frame_of(guest, push("t", ids, Values(200, 1), {.returns_rows = true}));
  CHECK(rows_after(rig.send_frame(guest, first)[0]) == Values(200, 1));
  rig.ask(guest, push("t", ids, Values(200, 10)));
  CHECK(rows_after(rig.send_frame(guest, first)[0]) == Values(200, 11));
}

TEST_CASE("a repeated push gets rows only for as many values as it brings") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  ps::TableSpec dense = sum_table("d", 1);
  dense.kind = ps::TableKind::kDense;
  dense.count = 1000;
  rig.ask(guest, make_table(dense));
  const std::uint64_t done = guest.seq;
  const Request rows = push("t", Ids(1000, 5), {}, {.returns_rows = true});
  const Request all = push_dense("d", {}, {.returns_rows = true});
  for (const Request& request : {rows, all}) {
    ps::Frame frame = rig.frame_of(guest, request);
    frame.header.seq = done;  // Says that it is the last one once more.
    const auto answers = rig.send_frame(guest, frame);
    REQUIRE(answers.size() == 1);
    CHECK(error_of(answers[0].frame) == ErrorKind::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gradring::testing::repeated_test
