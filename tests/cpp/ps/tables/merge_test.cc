// A client's arithmetic: each distinct id once, by shard; rows to every position; sums in order.
#include "ps/tables/merge.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "ps/tables/partition.h"

namespace gradring::testing::merge_test {
namespace {

using ps::Distinct;

std::vector<std::uint64_t> ids_with_repeats(std::mt19937_64& random, std::size_t count) {
  std::vector<std::uint64_t> ids(count);
  for (std::uint64_t& id : ids) {
    id = random() % (count / 2 + 1);
    if (random() % 3 == 0) id = ~id;
  }
  return ids;
}

std::vector<float> some_rows(std::mt19937_64& random, std::size_t floats) {
  std::normal_distribution<float> normal;
  std::vector<float> rows(floats);
  for (float& value : rows) value = normal(random);
  return rows;
}

TEST_CASE("distinct ids come once, by shard, in the order of their first occurrence") {
  std::mt19937_64 random(1);
  for (const std::size_t count : {0, 1, 2, 3, 17, 1000, 5000}) {
    for (const std::uint32_t shards : {1u, 2u, 7u}) {
      CAPTURE(count);
      CAPTURE(shards);
      const auto ids = ids_with_repeats(random, count);
      const Distinct distinct(ids, shards);
      std::vector<std::uint64_t> expected;
      std::map<std::uint64_t, std::vector<std::uint32_t>> positions;
      for (std::uint32_t shard = 0; shard < shards; ++shard) {
        REQUIRE(distinct.begin_of(shard) == expected.size());
        for (std::uint32_t i = 0; i < count; ++i) {
          if (ps::shard_of(ids[i], shards) != shard) continue;
          if (positions[ids[i]].empty()) expected.push_back(ids[i]);
          positions[ids[i]].push_back(i);
        }
        REQUIRE(distinct.end_of(shard) == expected.size());
      }
      REQUIRE(std::vector(distinct.ids().begin(), distinct.ids().end()) == expected);
      if (distinct.is_identity()) {
        REQUIRE(expected == ids);
        continue;
      }
      for (std::size_t place = 0; place < expected.size(); ++place) {
        const auto found = distinct.positions(place);
        REQUIRE(std::vector(found.begin(), found.end()) == positions[expected[place]]);
      }
    }
  }
}

TEST_CASE("rows go to every position of their id, and gradients come together in order") {
  std::mt19937_64 random(2);
  for (const std::size_t dim : {1, 3, 8, 64, 65}) {
    for (const std::uint32_t shards : {1u, 3u}) {
      CAPTURE(dim);
      CAPTURE(shards);
      const auto ids = ids_with_repeats(random, 700);
      const Distinct distinct(ids, shards);
      const std::size_t rows = distinct.ids().size();
      const auto gradients = some_rows(random, ids.size() * dim);
      std::map<std::uint64_t, std::vector<float>> sums;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto from = gradients.begin() + static_cast<std::ptrdiff_t>(i * dim);
        auto& sum = sums[ids[i]];
        if (sum.empty()) {
          sum.assign(from, from + static_cast<std::ptrdiff_t>(dim));
        } else {
          for (std::size_t column = 0; column < dim; ++column)
            sum[column] += gradients[i * dim + column];
        }
      }
      std::vector<float> merged(rows * dim);
      std::vector<float> out(ids.size() * dim, -1.0F);
      for (std::size_t first = 0; first < rows; first += 100) {  // In parts, as they travel.
        const std::size_t count = std::min<std::size_t>(100, rows - first);
        distinct.sum(first, count, gradients.data(), dim, &merged[first * dim]);
        distinct.fan_out(first, count, &merged[first * dim], dim, out.data());
      }
      for (std::size_t place = 0; place < rows; ++place) {
        const std::vector<float>& sum = sums[distinct.ids()[place]];
        REQUIRE(std::equal(sum.begin(), sum.end(), &merged[place * dim]));
      }
      for (std::size_t i = 0; i < ids.size(); ++i)
        REQUIRE(std::equal(sums[ids[i]].begin(), sums[ids[i]].end(), &out[i * dim]));
    }
  }
}

TEST_CASE("a list without repeats stays as it is on one shard, and is dealt to several") {
  const std::vector<std::uint64_t> ids = {5, 3, ~std::uint64_t{0}, 0};
  for (const bool is_promised : {false, true}) {
    const Distinct one(ids, 1, is_promised);
    REQUIRE(one.is_identity());
    REQUIRE(one.ids().data() == ids.data());
    const Distinct many(ids, 4, is_promised);
    REQUIRE(!many.is_identity());
    const std::vector<float> rows = {1, 2, 3, 4};
    std::vector<float> merged(4);
    std::vector<float> back(4);
    many.sum(0, 4, rows.data(), 1, merged.data());
    many.fan_out(0, 4, merged.data(), 1, back.data());
    REQUIRE(back == rows);
  }
}

TEST_CASE("a sorted list is taken as it is only if it has no repeats") {
  const std::uint64_t most = ~std::uint64_t{0};
  const std::vector<std::uint64_t> sorted = {0, 1, 7, most};
  CHECK(Distinct(sorted, 1).is_identity());
  for (const std::vector<std::uint64_t>& ids :
       {std::vector<std::uint64_t>{0, 1, 7, 7}, {0, 0, 7, most}, {0, 1, most, 0}}) {
    const Distinct distinct(ids, 1);
    CHECK(!distinct.is_identity());
    CHECK(distinct.ids().size() == 3);
  }
}

TEST_CASE(
    "the list before this one changes nothing, the same, another or one that broke a promise") {
  std::mt19937_64 random(3);
  const std::vector<std::uint64_t> ids = ids_with_repeats(random, 300);
  std::vector<std::uint64_t> other = ids;
  other.back() = other.front();
  const std::vector<std::uint64_t> shorter(ids.begin(), ids.end() - 1);
  const std::vector<std::uint64_t> unsorted = {9, 4, 1};
  const std::vector<std::uint64_t> repeated = {9, 4, 9};
  for (const std::uint32_t shards : {1u, 3u}) {
    for (const auto& list : {ids, ids, other, ids, shorter, unsorted, repeated, unsorted}) {
      const Distinct promised(repeated, shards, true);
      const Distinct distinct(list, shards);
      CHECK(distinct.ids().size() == std::set(list.begin(), list.end()).size());
      if (distinct.is_identity()) {
        CHECK(distinct.ids().data() == list.data());
        continue;
      }
      std::size_t positions = 0;
      for (std::size_t place = 0; place < distinct.ids().size(); ++place) {
        for (const std::uint32_t position : distinct.positions(place))
          CHECK(list[position] == distinct.ids()[place]);
        positions += distinct.positions(place).size();
      }
      CHECK(positions == list.size());
    }
  }
}

}  // namespace
}  // namespace gradring::testing::merge_test
