// Ticks: the one that was told to all tables is remembered, and the first one, which dates all rows
// at once, leaves changes that come in portions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "support/shard_rig.h"

namespace gradring::testing::tick_test {
namespace {

TEST_CASE("a tick of all tables holds for those made later, also after a checkpoint was loaded") {
  const auto has_tick = [](ShardRig& rig) {
    Guest guest = rig.enter(3);
    rig.ask(guest, make_table(sum_table("later", 1)));
    return rig.shard().stats().find("\"tick\":7") != std::string::npos;
  };
  ShardRig rig(0, 1, 1);
  Guest guest = rig.enter(0);
  rig.ask(guest, tick(7));  // Of no table yet: nothing else remembers it.
  const auto saved = rig.snapshot();
  for (const bool is_recovery : {true, false}) {
    ShardRig again(0, 1, 2);
    again.load({saved}, is_recovery);
    CHECK(has_tick(again));
  }
  ShardRig other(1, 3, 2);
  other.load({saved}, false);
  CHECK(has_tick(other));
}

TEST_CASE("a checkpoint of before, whose layout ends without a tick, is loaded") {
  constexpr std::uint64_t kLayoutBytes = 16;
  ShardRig rig(0, 1, 1);
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(sum_table("t", 2)));
  rig.ask(guest, push("t", {5}, {1, 2}));
  auto saved = rig.snapshot();
  const auto tick_at = saved.begin() + 24 + 16;  // Behind the record's head and what was there.
  saved.erase(tick_at, tick_at + 8);
  std::memcpy(saved.data() + 16, &kLayoutBytes, sizeof kLayoutBytes);
  ShardRig again(0, 1, 2);
  again.load({saved}, false);
  Guest reader = again.enter(1);
  const ps::Frame answer = again.ask(reader, pull("t", {5}));
  CHECK(rows_of(answer.header, answer.payload, 2).rows == Values{1, 2});
}

}  // namespace
}  // namespace gradring::testing::tick_test
