// Room that was asked for in time is there when memory is not.
#include <doctest/doctest.h>

#include <bit>
#include <new>
#include <random>

#include "ps/tables/hash_index.h"
#include "ps/tables/sparse_table.h"
#include "support/no_memory.h"

namespace gradring::testing::reserve_test {
namespace {

using ps::HashIndex;

TEST_CASE("an index finds room for the ids that it was told of, and finds them again") {
  std::mt19937_64 random(1);
  HashIndex index;
  std::vector<std::uint64_t> ids;
  for (const std::size_t count : {1, 7, 100, 3000, 10, 20'000, 500}) {
    CAPTURE(count);
    index.reserve(count);
    const NoPages none;
    for (std::size_t nth = 0; nth < count; ++nth) {
      ids.push_back(random());
      index.insert(ids.back(), ids.size());
    }
  }
  {
    const NoPages none;
    for (std::size_t at = 0; at < ids.size(); at += 2) CHECK(index.erase(ids[at]));
  }
  for (std::size_t at = 0; at < ids.size(); ++at)
    REQUIRE(index.find(ids[at]) == (at % 2 == 0 ? HashIndex::kNone : at + 1));
  CHECK(index.find(random()) == HashIndex::kNone);
}

TEST_CASE("an index without memory takes ids as long as it has slots, and says when it has none") {
  HashIndex index;
  index.reserve(1);
  std::uint64_t next = 0;
  {
    const NoPages none;
    CHECK_THROWS_AS(
        [&] {
          for (;; ++next) index.insert(next, next);
        }(),
        std::bad_alloc);
  }
  CHECK(next > HashIndex::kSegments);
  CHECK(index.size() == next);
  for (std::uint64_t id = 0; id < next; ++id) REQUIRE(index.find(id) == id);
  CHECK(index.find(next) == HashIndex::kNone);
  for (; next < 100'000; ++next) index.insert(next, next);
  for (std::uint64_t id = 0; id < next; ++id) REQUIRE(index.find(id) == id);
}

TEST_CASE("ids in patterns lie in an index as random ones do") {
  using Id = std::uint64_t;
  constexpr Id kIds = 1u << 15;
  constexpr Id kSlots = 1u << 16;
  std::vector<Id (*)(Id)> patterns = {
      [](Id i) { return i; },
      [](Id i) { return ~i; },
      [](Id i) { return i * 1000; },
      [](Id i) { return i << 49; },
      [](Id i) { return (i % 26) << 52 | i / 26; },
      [](Id i) { return i / 26 << 5 | i % 26; },
      [](Id i) { return i / 181 << 32 | i % 181; },
      [](Id i) { return i << 32 | i; },
      [](Id i) { return std::bit_cast<Id>(static_cast<double>(i)); },
      [](Id i) { return 1'700'000'000'000'000'000 + i * 1'000'000; },
  };
  const auto looks = [&](const auto& id_of) {
    std::vector<bool> is_taken(kSlots);
    Id taken = 0;
    for (Id i = 0; i < kIds; ++i) {
      Id at = ps::mix_id(id_of(i)) % kSlots;
      for (++taken; is_taken[at]; ++taken) at = (at + 1) % kSlots;
      is_taken[at] = true;
    }
    return static_cast<double>(taken) / kIds;
  };
  for (std::size_t nth = 0; nth < patterns.size(); ++nth) {
    CAPTURE(nth);
    CHECK(looks(patterns[nth]) < 1.6);  // Random ones: 1.5 at half full.
  }
  for (int shift = 0; shift < 50; ++shift) {
    CAPTURE(shift);
    CHECK(looks([shift](Id i) { return i << shift; }) < 1.6);
  }
}

TEST_CASE("a table finds room for a push that it was told of, also beside a snapshot") {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = 3;
  SUBCASE("") {}
  SUBCASE("where ids are counted first") {
    spec.entry.count = 2;
  }
  ps::SparseTable table(spec);
  std::vector<std::uint64_t> ids(5000);
  for (std::size_t at = 0; at < ids.size(); ++at) ids[at] = at * 7;
  const auto push = [&](std::size_t first) {
    const auto some = std::span(ids).subspan(first, 2500);
    std::vector<float> ones(some.size() * spec.dim, 1);
    table.reserve(some.size(), table.count_fresh(some));
    const NoPages none;
    const NoHeap nothing(64 << 10);
    return table.apply(some, ones.data(), 0, 1);
  };
  const bool counts = spec.entry.count > 1;
  push(0);
  table.begin_snapshot(0);
  CHECK(push(0).rows == 2500);
  const ps::Applied last = push(2500);
  CHECK(last.rows == (counts ? 0 : 2500));
  CHECK(last.skipped.size() == (counts ? 2500 : 0));
  const std::size_t rows = counts ? 2500 : 5000;
  CHECK(table.size() == rows);
  CHECK(table.count_fresh(ids) == ids.size() - rows);
}

TEST_CASE("a table that reserves in vain is as it was") {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = 3;
  ps::SparseTable table(spec);
  {
    const NoPages none;
    CHECK_THROWS_AS(table.reserve(5000, 5000), std::bad_alloc);
  }
  CHECK(table.size() == 0);
  CHECK(table.stamp() == 0);
}

}  // namespace
}  // namespace gradring::testing::reserve_test
