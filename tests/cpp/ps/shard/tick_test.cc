// Ticks: the one that was told to all tables is remembered, and the first one, which dates all rows
// at once, leaves changes that come in portions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "support/ps/shard_rig.h"

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

TEST_CASE("after the first tick, all rows come as changed in portions, and each once") {
  constexpr std::uint32_t kDim = 1024;
  constexpr std::size_t kRows = 2000;  // 8 MiB of them.
  const auto table_of = [](const std::vector<std::uint64_t>& removed_first) {
    auto table = std::make_unique<ps::SparseTable>(sum_table("t", kDim));
    // Other rows lie elsewhere in memory afterwards.
    std::vector<float> zeros(kRows * kDim);
    table->apply(removed_first, zeros.data(), 0, 1);
    table->shrink(1e9F, 0);
    std::vector<std::uint64_t> ids(kRows);
    std::iota(ids.begin(), ids.end(), 0);
    table->apply(ids, zeros.data(), 0, 1);
    table->set_tick(20'000);
    return table;
  };
  const auto portions_of = [](const ps::SparseTable& table) {
    std::vector<std::vector<std::uint64_t>> portions;
    ps::SparseTable::Changed changed{.ids = {}, .since = 0, .more = true};
    while (changed.more) {
      changed = table.changed(changed.since, 9, 100);
      std::sort(changed.ids.begin(), changed.ids.end());
      portions.push_back(changed.ids);
    }
    return portions;
  };
  const auto portions = portions_of(*table_of({1}));
  CHECK(portions.size() > 10);
  std::vector<std::uint64_t> all;
  for (const auto& ids : portions) {
    CHECK(ids.size() <= 256);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::sort(all.begin(), all.end());
  CHECK(all.size() == kRows);
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  // As a log that is played again has to do it: from where a reader had come it goes on.
  CHECK(portions_of(*table_of({5, 6, 7, 8})) == portions);
}

}  // namespace
}  // namespace gradring::testing::tick_test
