// What does not fit: a table into memory, a held request into the journal, a contribution into a
// piece of a checkpoint.
#include <doctest/doctest.h>

#include "support/ps/shard_rig.h"

namespace gradring::testing::shortage_test {
namespace {

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
  rig.journal.has_no_memory = true;
  Request end = thaw(1);
  SUBCASE("when the freeze ends") {}
  SUBCASE("when the cut lets it through") {
    end = advance(1, Millis{1000}, {{0, 1, 3, {}}});
  }
  CHECK_THROWS_WITH_AS(rig.send(saver, end), doctest::Contains("memory"), ps::HalfDone);
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
