// What a shard answers to a change that comes again, because the first answer was lost.
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

std::uint64_t removed_by(const ps::Answer& answer) {
  REQUIRE(answer.frame.header.type == PsType::kDone);
  wire::Reader in(answer.frame.payload);
  return ps::get_outcome(in).workers;
}

// Where a client may hear of a change again: there, after a checkpoint, after the log.
struct Places {
  explicit Places(ShardRig& rig) : first(rig) {
    loaded.load({rig.snapshot()}, true);
    replayed.replay(rig.journal.records);
  }
  ShardRig& first;
  ShardRig loaded;
  ShardRig replayed;
  std::vector<ShardRig*> all() { return {&first, &loaded, &replayed}; }
};

TEST_CASE("a repeated tick and a repeated shrink tell how many rows they removed the first time") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  ps::TableSpec spec = sum_table("t", kSumsDim);
  spec.unseen_ticks = 2;
  rig.ask(guest, make_table(spec));
  rig.ask(guest, push("t", {1, 2, 3}, Values(6, 1)));
  rig.ask(guest, tick(1));
  rig.ask(guest, push("t", {4, 5}, Values(4, 1)));
  rig.ask(guest, push("t", {4}, Values(2, 1)));
  SUBCASE("a tick") {
    const ps::Frame frame = rig.frame_of(guest, tick(3));
    CHECK(removed_by(rig.send_frame(guest, frame)[0]) == 3);
    rig.ask(guest, push("t", {1}, {1, 1}));
    Places places(rig);
    for (ShardRig* place : places.all()) {
      Guest back = place->enter(0);
      CHECK(removed_by(place->send_frame(back, frame)[0]) == 3);
      CHECK(pulled(*place, back, {1, 2, 4, 5}) == Values{1, 1, 0, 0, 2, 2, 1, 1});
    }
  }
  SUBCASE("a shrink") {
    const ps::Frame frame = rig.frame_of(guest, shrink("t", 2, 0));
    CHECK(removed_by(rig.send_frame(guest, frame)[0]) == 4);
    rig.ask(guest, push("t", {1}, {1, 1}));  // Done again, it would remove this one.
    Places places(rig);
    for (ShardRig* place : places.all()) {
      Guest back = place->enter(0);
      CHECK(removed_by(place->send_frame(back, frame)[0]) == 4);
      CHECK(pulled(*place, back, {1, 4, 5}) == Values{1, 1, 2, 2, 0, 0});
    }
  }
}

TEST_CASE("a repeated write of rows or of a dense table writes nothing over what came after it") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  ps::TableSpec dense = sum_table("d", 1);
  dense.kind = ps::TableKind::kDense;
  dense.count = 3;
  rig.ask(guest, make_table(dense));
  ps::RowMeta meta;
  meta.id = 5;
  meta.version = 7;
  const ps::Frame rows = rig.frame_of(guest, write_rows("t", {meta}, {1, 2}, 4));
  CHECK(rig.send_frame(guest, rows)[0].frame.header.type == PsType::kDone);
  const ps::Frame floats = rig.frame_of(guest, write_dense("d", 4, {1, 2, 3}));
  CHECK(rig.send_frame(guest, floats)[0].frame.header.type == PsType::kDone);
  rig.ask(guest, push("t", {5}, {10, 20}));
  rig.ask(guest, push_dense("d", {10, 20, 30}));
  Places places(rig);
  for (ShardRig* place : places.all()) {
    Guest back = place->enter(0);
    CHECK(place->send_frame(back, rows)[0].frame.header.type == PsType::kDone);
    CHECK(place->send_frame(back, floats)[0].frame.header.type == PsType::kDone);
    const ps::Frame answer = place->ask(back, pull("t", {5}));
    const PulledRows row = rows_of(answer.header, answer.payload, kSumsDim);
    CHECK(row.rows == Values{11, 22});
    CHECK(row.versions == std::vector<std::uint32_t>{8});
    CHECK(floats_of(place->ask(back, pull_dense("d")).payload) == Values{11, 22, 33});
    CHECK(place->shard().stats().find("\"steps\":5") != std::string::npos);
  }
}

}  // namespace
}  // namespace gradring::testing::repeated_test
