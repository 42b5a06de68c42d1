// What does not fit: a table into memory, a held request into the journal, a contribution into a
// piece of a checkpoint.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <new>
#include <span>

#include "support/no_memory.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::shortage_test {
namespace {

Ids ids_from(std::uint64_t first, std::size_t count) {
  Ids ids(count);
  for (std::size_t at = 0; at < count; ++at) ids[at] = first + at;
  return ids;
}

Request push_ones(const Ids& ids) {
  return push("t", ids, Values(ids.size() * kSumsDim, 1));
}

ps::TableSpec dense_table(std::uint64_t count) {
  ps::TableSpec spec = sum_table("d", 1);
  spec.kind = ps::TableKind::kDense;
  spec.count = count;
  return spec;
}

ShardRig rig_with_memory(std::uint64_t floats) {
  ps::ShardOptions options = ShardRig::options_of();
  options.dense_bytes = floats * sizeof(float);
  return ShardRig(options);
}

TEST_CASE("a table that found no memory finds none in a replay, however much there is by then") {
  ShardRig rig = rig_with_memory(100);
  Guest guest = rig.enter(0);
  const ps::Frame refused = rig.ask(guest, make_table(dense_table(1000)));
  CHECK(error_of(refused) == ErrorKind::kInvalidArgument);
  CHECK(text_of(refused).find("'d' does not fit into this server's memory") != std::string::npos);
  CHECK(error_of(rig.ask(guest, make_table(dense_table(2)))) == ErrorKind::kNone);
  CHECK(error_of(rig.ask(guest, push_dense("d", {1, 2}))) == ErrorKind::kNone);
  for (const std::uint64_t floats : {100, 10'000}) {
    CAPTURE(floats);
    ShardRig again = rig_with_memory(floats);
    again.replay(rig.journal.records);
    CHECK(again.snapshot() == rig.snapshot());
    Guest reader = again.enter(1);
    CHECK(floats_of(again.ask(reader, pull_dense("d")).payload) == Values{1, 2});
  }
}

TEST_CASE("a replay without the memory for a table that was made stops, and refuses nothing") {
  ShardRig rig = rig_with_memory(100);
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(dense_table(100)));
  ShardRig again = rig_with_memory(10);
  CHECK_THROWS_WITH_AS(again.replay(rig.journal.records), doctest::Contains("more memory"),
                       ps::HalfDone);
}

TEST_CASE("a client cannot say itself that there was no memory") {
  ShardRig rig = rig_with_memory(100);
  Guest guest = rig.enter(0);
  Request make = make_table(dense_table(2));
  make.header.a = 1;
  CHECK(error_of(rig.ask(guest, make)) == ErrorKind::kNone);
}

TEST_CASE("a checkpoint with a table that finds no memory is refused, and the shard lives on") {
  ShardRig source = rig_with_memory(100);
  Guest guest = source.enter(0);
  source.ask(guest, make_table(dense_table(100)));
  const auto saved = source.snapshot();
  ShardRig rig = rig_with_memory(10);
  rig.shard().begin_load();
  CHECK_THROWS_AS(rig.shard().load_piece(saved), InvalidArgument);
  rig.shard().abandon_load();
  Guest other = rig.enter(0);
  CHECK(error_of(rig.ask(other, make_table(dense_table(10)))) == ErrorKind::kNone);
}

TEST_CASE("a held request that the journal has no memory for stops the shard") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, Millis{1000}));
  for (int i = 0; i < 2; ++i) CHECK(rig.send(guest, push("t", {5}, {1, 1})).empty());
  rig.journal.most_bytes = 0;
  Request end = thaw(1);
  SUBCASE("when the freeze ends") {}
  SUBCASE("when the cut lets it through") {
    end = advance(1, Millis{1000}, {{0, 1, 3, {}}});
  }
  CHECK_THROWS_WITH_AS(rig.send(saver, end), doctest::Contains("memory"), ps::HalfDone);
}

void check_refused(const ps::Frame& answer, const char* what) {
  CHECK(error_of(answer) == ErrorKind::kInvalidArgument);
  CHECK(text_of(answer).find(what) != std::string::npos);
  CHECK(text_of(answer).find("has done nothing of it") != std::string::npos);
}

TEST_CASE("rows that find no memory are refused whole, and that is in the log") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const Ids ids = ids_from(100, 3000);
  CHECK(error_of(rig.ask(guest, push_ones({100, 101}))) == ErrorKind::kNone);
  Request request = push_ones(ids);
  SUBCASE("of a push") {}
  SUBCASE("of a push that wants them back") {
    request = push("t", ids, Values(ids.size() * kSumsDim, 1), {.returns_rows = true});
  }
  SUBCASE("of rows that are written") {
    std::vector<ps::RowMeta> metas(ids.size());
    for (std::size_t at = 0; at < ids.size(); ++at) metas[at].id = ids[at];
    request = write_rows("t", metas, Values(ids.size() * kSumsDim, 1));
  }
  ps::Frame frame = rig.frame_of(guest, request);
  const auto ask_again = [&] { return arrived(std::move(rig.send_frame(guest, frame)[0])); };
  {
    const NoPages none;
    check_refused(ask_again(), "3000 rows");
    check_refused(ask_again(), "3000 rows");
  }
  check_refused(ask_again(), "3000 rows");
  CHECK(error_of(rig.ask(guest, push_ones({100}))) == ErrorKind::kNone);
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
  CHECK(pulled(rig, guest, {100, 102}) == Values{2, 2, 0, 0});
  Guest reader = again.enter(1);
  CHECK(pulled(again, reader, {100, 102}) == Values{2, 2, 0, 0});
}

TEST_CASE("a push to rows that are there needs no memory, however many they are") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const Ids ids = ids_from(0, 3000);
  REQUIRE(error_of(rig.ask(guest, push_ones(ids))) == ErrorKind::kNone);
  const NoPages none;
  for (int nth = 0; nth < 3; ++nth)
    CHECK(error_of(rig.ask(guest, push_ones(ids))) == ErrorKind::kNone);
  CHECK(pulled(rig, guest, {0, 2999}) == Values{4, 4, 4, 4});
}

TEST_CASE("a push that the journal has no memory for is refused, and told so when it comes again") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame frame = rig.frame_of(guest, push_ones(ids_from(0, 100)));
  rig.journal.most_bytes = 100;
  for (int nth = 0; nth < 2; ++nth)
    check_refused(arrived(std::move(rig.send_frame(guest, frame)[0])), "100 rows");
  rig.journal.most_bytes = ~std::size_t{0};
  CHECK(error_of(rig.ask(guest, push_ones({1}))) == ErrorKind::kNone);
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
  CHECK(pulled(rig, guest, {0, 1}) == Values{0, 0, 1, 1});
}

TEST_CASE("a client cannot say itself that its rows found no memory") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  Request request = push_ones({5});
  request.header.flags |= wire::kFoundNoMemory;
  CHECK(error_of(rig.ask(guest, request)) == ErrorKind::kNone);
  CHECK(pulled(rig, guest, {5}) == Values{1, 1});
}

// A table that has much to note of a push: of rows that are counted first, of a snapshot.
ps::TableSpec careful_table() {
  ps::TableSpec spec = sum_table("t", kSumsDim);
  spec.entry.count = 2;
  return spec;
}

TEST_CASE("whatever piece of memory a change lacks, it is done whole or not at all") {
  const Ids ids = ids_from(100, 300);
  Values ones(ids.size() * kSumsDim, 1);
  Request request = push("t", ids, ones);
  ps::TableSpec spec = sum_table("t", kSumsDim);
  SUBCASE("a push") {}
  SUBCASE("a push that wants its rows back") {
    request = push("t", ids, ones, {.returns_rows = true});
  }
  SUBCASE("a push of some rows that are refused, in fewer bytes, that wants them back") {
    ones[6] = std::numeric_limits<float>::infinity();
    request = push("t", ids, ones, {.returns_rows = true, .codec = wire::RowCodec::kInt8});
    request.header.flags |= wire::kTellsSkipped;
  }
  SUBCASE("a push beside a snapshot") {
    spec = careful_table();
  }
  SUBCASE("rows that are written") {
    std::vector<ps::RowMeta> metas(ids.size());
    for (std::size_t at = 0; at < ids.size(); ++at) metas[at].id = ids[at];
    request = write_rows("t", metas, ones);
  }
  std::size_t done = 0;
  std::size_t refused = 0;
  bool was_felt = true;
  for (std::uint64_t nth = 0; was_felt; ++nth) {
    CAPTURE(nth);
    REQUIRE(nth < 1000);
    ShardRig rig;
    Guest guest = rig.enter(0);
    rig.ask(guest, make_table(spec));
    for (int time = 0; time < 2; ++time) rig.ask(guest, push_ones({100, 101}));
    if (spec.entry.count > 1) REQUIRE(rig.shard().begin_snapshot());
    const ps::Frame frame = rig.frame_of(guest, request);
    std::vector<ps::Answer> answers;
    ps::Frame sent = frame;
    {
      const NoHeap one(0, nth);
      try {
        rig.shard().receive(guest.connection, std::move(sent), rig.now, answers);
      } catch (const std::bad_alloc&) {
        // Before anything was done.
      }
      was_felt = one.was_felt();
    }
    rig.shard().end_snapshot(ps::Shard::kOwnSnapshot);
    if (answers.empty()) answers = rig.send_frame(guest, frame);
    REQUIRE(answers.size() == 1);
    const ps::Frame answer = arrived(std::move(answers[0]));
    ShardRig replayed;
    replayed.replay(rig.journal.records);
    CHECK(replayed.snapshot() == rig.snapshot());
    const ps::Frame again = arrived(std::move(rig.send_frame(guest, frame)[0]));
    CHECK(again.header.type == answer.header.type);
    if (error_of(answer) == ErrorKind::kNone) {
      ++done;
      CHECK(std::ranges::equal(std::span(again.payload).first(ps::kOutcomeBytes),
                               std::span(answer.payload).first(ps::kOutcomeBytes)));
    } else {
      ++refused;
      check_refused(answer, "300 rows");
      check_refused(again, "300 rows");
      const float before = spec.entry.count > 1 ? 1 : 2;
      CHECK(pulled(rig, guest, {100, 102}) == Values{before, before, 0, 0});
    }
  }
  CHECK(done > 0);
  CHECK(refused > 0);
}

TEST_CASE("what a worker gives to a round is bounded, and what is too much changes nothing") {
  ps::ShardOptions options = ShardRig::options_of();
  options.contribution_bytes = 100;
  ShardRig rig(options);
  Guest guest = enter_with_table(rig, 0);
  rig.ask(guest, clock(9, 0, {1, true, 1}));
  const auto give = [&](const Ids& ids) {
    return rig.ask(guest,
                   push("t", ids, Values(ids.size() * kSumsDim, 1), {.round = wire::Round{9, 0}}));
  };
  CHECK(error_of(give({1, 2, 3})) == ErrorKind::kNone);  // 16 bytes each.
  CHECK(error_of(give({1, 4, 5})) == ErrorKind::kNone);
  const ps::Frame refused = give({6});
  CHECK(error_of(refused) == ErrorKind::kInvalidArgument);
  CHECK(text_of(refused).find("112 bytes") != std::string::npos);
  CHECK(text_of(refused).find("100") != std::string::npos);
  ShardRig again(options);
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
  rig.ask(guest, clock(9, 1, {1, true, 1}));
  CHECK(pulled(rig, guest, {1, 5, 6}) == Values{2, 2, 1, 1, 0, 0});
}

}  // namespace
}  // namespace gradring::testing::shortage_test
