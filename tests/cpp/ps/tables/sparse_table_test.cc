// A sparse table does what a std::map would, whatever the order of calls: random operations on
// both, compared bit for bit. (table_snapshot_test.cc has snapshots.)
#include "ps/tables/sparse_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "base/error.h"
#include "support/ps/table_reference.h"

namespace gradring::testing::sparse_table_test {
namespace {

using kernels::RuleKind;
using ps::SparseTable;
using ps::TableSpec;

constexpr std::uint64_t kHighest = ~std::uint64_t{0};

TableSpec spec_of(RuleKind kind, std::uint32_t dim) {
  TableSpec spec;
  spec.name = "rows";
  spec.dim = dim;
  spec.rule.kind = kind;
  spec.rule.lr = 0.125;
  spec.init = {ps::InitKind::kUniform, -1, 1};
  spec.seed = 7;
  return spec;
}

// Ids of every sort: small, at both ends, with equal lower or upper halves.
std::uint64_t some_id(std::mt19937_64& random, std::uint64_t most) {
  const std::uint64_t n = random() % most;
  switch (random() % 4) {
    case 0: return n;
    case 1: return kHighest - n;
    case 2: return n << 40;
    default: return n << 52 | 5;
  }
}

std::vector<std::uint64_t> distinct_ids(std::mt19937_64& random, std::size_t count,
                                        std::uint64_t most) {
  std::set<std::uint64_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.insert(some_id(random, most));
  std::vector<std::uint64_t> list(ids.begin(), ids.end());
  std::shuffle(list.begin(), list.end(), random);
  return list;
}

std::vector<float> some_gradients(std::mt19937_64& random, std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> gradients(count);
  for (float& value : gradients) value = normal(random);
  return gradients;
}

void require_equal(const ps::RowMeta& a, const ps::RowMeta& b) {
  REQUIRE(a.id == b.id);
  REQUIRE(a.stamp == b.stamp);
  REQUIRE(a.version == b.version);
  REQUIRE(a.steps == b.steps);
  REQUIRE(a.writer == b.writer);
  REQUIRE(a.tick == b.tick);
  REQUIRE(a.score == b.score);
}

void require_equal(const SparseTable& table, const reference::Table& expected) {
  REQUIRE(table.size() == expected.rows().size());
  REQUIRE(table.stamp() == expected.stamp());
  std::size_t seen = 0;
  SparseTable::Rows rows;
  do {
    rows = table.read(rows.cursor, 100);
    for (std::size_t i = 0; i < rows.metas.size(); ++i, ++seen) {
      const auto found = expected.rows().find(rows.metas[i].id);
      REQUIRE(found != expected.rows().end());
      require_equal(rows.metas[i], found->second.meta);
      REQUIRE(
          std::equal(found->second.floats.begin(), found->second.floats.end(),
                     rows.floats.begin() + static_cast<std::ptrdiff_t>(i * table.row_floats())));
    }
  } while (rows.more);
  REQUIRE(seen == expected.rows().size());
}

void require_same_changes(const SparseTable& table, const reference::Table& expected,
                          std::uint64_t since, std::uint32_t client, std::size_t most) {
  const auto all = expected.changed(since, client);
  std::multimap<std::uint64_t, std::uint64_t> found;
  SparseTable::Changed part{{}, since, true};
  std::uint64_t last = 0;
  while (part.more) {
    part = table.changed(part.since, client, most);
    std::set<std::uint64_t> stamps;
    for (const std::uint64_t id : part.ids) {
      const std::uint64_t stamp = expected.rows().at(id).meta.stamp;
      REQUIRE(stamp >= last);
      last = stamp;
      stamps.insert(stamp);
      found.emplace(stamp, id);
    }
    REQUIRE((part.ids.size() <= most || stamps.size() == 1));
  }
  REQUIRE(part.since == table.stamp());
  const std::set<std::pair<std::uint64_t, std::uint64_t>> a(all.begin(), all.end());
  const std::set<std::pair<std::uint64_t, std::uint64_t>> b(found.begin(), found.end());
  REQUIRE(found.size() == all.size());
  REQUIRE(a == b);
}

void play(const TableSpec& spec, std::uint64_t seed, int turns) {
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  SparseTable table(spec);
  reference::Table expected(spec);
  std::uint32_t tick = 0;
  for (int turn = 0; turn < turns; ++turn) {
    CAPTURE(turn);
    const auto client = static_cast<std::uint32_t>(random() % 3);
    const auto ids = distinct_ids(random, 1 + random() % 200, 300);
    switch (random() % 8) {
      case 0: {
        tick += static_cast<std::uint32_t>(random() % 2);
        REQUIRE(table.set_tick(tick) == expected.set_tick(tick));
        break;
      }
      case 1: {
        const auto least = static_cast<float>(random() % 3) * 0.5F;
        const auto unseen = static_cast<std::uint32_t>(random() % 4);
        REQUIRE(table.shrink(least, unseen) == expected.shrink(least, unseen));
        break;
      }
      case 2: {
        std::vector<ps::RowMeta> metas;
        for (const std::uint64_t id : ids)
          metas.push_back({.id = id,
                           .version = static_cast<std::uint32_t>(random() % 9),
                           .steps = static_cast<std::uint32_t>(random() % 5),
                           .tick = tick,
                           .score = 2});
        auto floats = some_gradients(random, ids.size() * table.row_floats());
        for (float& value : floats) value = std::abs(value);  // Squares, among others.
        table.write(metas, floats.data(), client);
        expected.write(metas, floats, client);
        break;
      }
      default: {
        auto gradients = some_gradients(random, ids.size() * spec.dim);
        if (random() % 4 == 0)
          gradients[random() % gradients.size()] = std::numeric_limits<float>::quiet_NaN();
        if (random() % 4 == 0)
          gradients[random() % gradients.size()] = -std::numeric_limits<float>::infinity();
        const std::uint64_t step = static_cast<std::uint64_t>(turn) + 1;
        const ps::Applied wanted = expected.apply(ids, gradients, client, step);
        const ps::Applied got = table.apply(ids, gradients.data(), client, step);
        REQUIRE(got.rows == wanted.rows);
        REQUIRE(got.refused == wanted.refused);
        REQUIRE(got.not_admitted == wanted.not_admitted);
      }
    }
    std::vector<std::uint64_t> asked = distinct_ids(random, 50, 400);
    asked.push_back(asked.front());
    std::vector<float> rows(asked.size() * spec.dim, -9);
    table.gather(asked, rows.data());
    REQUIRE(rows == expected.gather(asked));
    require_same_changes(table, expected, random() % (table.stamp() + 2), client,
                         1 + random() % 100);
  }
  require_equal(table, expected);
}

TEST_CASE("a sparse table does what a map of rows does") {
  for (const RuleKind kind : {RuleKind::kSum, RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kAdam,
                              RuleKind::kSparseAdam, RuleKind::kRowWiseAdagrad}) {
    CAPTURE(kernels::name(kind));
    for (const std::uint32_t dim : {1u, 5u, 16u, 33u}) {
      CAPTURE(dim);
      play(spec_of(kind, dim), dim * 100 + static_cast<std::uint64_t>(kind), 30);
    }
  }
}

TEST_CASE("a sparse table admits, decays and expires as a map of rows does") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    TableSpec spec = spec_of(RuleKind::kSgd, 4);
    spec.entry = {static_cast<std::uint32_t>(seed % 4), seed % 3 == 0 ? 1.0F : 0.5F};
    spec.unseen_ticks = static_cast<std::uint32_t>(seed % 3);
    spec.score_decay = seed % 2 == 0 ? 0.5F : 1.0F;
    spec.slot_shift = 40;
    spec.slots = {{.slot = 3, .lr_scale = 0.5, .entry = {}, .unseen_ticks = 1},
                  {.slot = 0, .lr_scale = 2, .entry = {2, 1}, .unseen_ticks = 0}};
    play(spec, seed, 60);
  }
}

TEST_CASE("the first tick may be any number: what was pushed before is one tick old") {
  TableSpec spec = spec_of(RuleKind::kSum, 1);
  spec.unseen_ticks = 1;
  spec.score_decay = 0.5F;
  spec.entry = {2, 1};
  SparseTable table(spec);
  const std::vector<std::uint64_t> ids{1, 2};
  std::vector<float> one{1};
  for (int push = 0; push < 2; ++push) {
    std::vector<float> ones{1, 1};
    table.apply(ids, ones.data(), 0, 1);
  }
  table.apply(std::vector<std::uint64_t>{3}, one.data(), 0, 1);  // Once is not enough to be a row.
  const std::uint64_t before = table.stamp();
  CHECK(table.set_tick(20'000) == 0);
  CHECK(table.size() == 2);
  CHECK(table.changed(before, 9, 10).ids.size() == 2);  // The next checkpoint knows of it.
  table.apply(std::vector<std::uint64_t>{3}, one.data(), 0, 1);
  CHECK(table.size() == 3);  // Its first push still counts.
  CHECK(table.set_tick(20'001) == 2);
  CHECK(table.size() == 1);
}

TEST_CASE("every row is found after the table has grown many times") {
  const TableSpec spec = spec_of(RuleKind::kSum, 1);
  SparseTable table(spec);
  constexpr std::size_t kRows = 200'000;
  constexpr std::size_t kBatch = 10'000;
  std::vector<std::uint64_t> ids(kBatch);
  std::vector<float> gradients(kBatch);
  for (std::size_t first = 0; first < kRows; first += kBatch) {
    for (std::size_t i = 0; i < kBatch; ++i) ids[i] = (first + i) * 0x9E3779B97F4A7C15ull;
    std::fill(gradients.begin(), gradients.end(), 1.0F);
    REQUIRE(table.apply(ids, gradients.data(), 0, 1).rows == kBatch);
  }
  REQUIRE(table.size() == kRows);
  const ps::Draws draws(spec.seed, ps::table_id(spec.name));
  std::vector<std::uint32_t> versions(kBatch);
  for (std::size_t first = 0; first < kRows; first += kBatch) {
    for (std::size_t i = 0; i < kBatch; ++i) ids[i] = (first + i) * 0x9E3779B97F4A7C15ull;
    table.gather(ids, gradients.data());
    table.versions(ids, versions.data());
    for (std::size_t i = 0; i < kBatch; ++i) {
      float start = 0;
      draws.fill_row(spec.init, ids[i], 1, &start);
      REQUIRE(gradients[i] == start + 1.0F);
      REQUIRE(versions[i] == 1);
    }
  }
}

TEST_CASE("an id that is pushed twice in one call is one row") {
  SparseTable table(spec_of(RuleKind::kSum, 2));
  const std::vector<std::uint64_t> ids = {kHighest, 0, kHighest};
  std::vector<float> gradients = {1, 2, 3, 4, 5, 6};
  REQUIRE(table.apply(ids, gradients.data(), 0, 1).rows == 3);
  REQUIRE(table.size() == 2);
  ps::RowMeta meta;
  std::vector<float> floats(2);
  REQUIRE(table.read_row(kHighest, meta, floats.data()));
  REQUIRE(meta.version == 2);
  REQUIRE(!table.read_row(1, meta, floats.data()));
}

TEST_CASE("a row that was removed and comes again has a higher version than before") {
  TableSpec spec = spec_of(RuleKind::kSum, 1);
  SparseTable table(spec);
  const std::vector<std::uint64_t> ids = {42};
  for (int push = 0; push < 5; ++push) {
    float gradient = 1;
    table.apply(ids, &gradient, 0, 1);
  }
  REQUIRE(table.shrink(100, 0) == 1);
  std::uint32_t version = 9;
  table.versions(ids, &version);
  REQUIRE(version == 0);
  float gradient = 1;
  table.apply(ids, &gradient, 0, 1);
  table.versions(ids, &version);
  REQUIRE(version == 6);
}

TEST_CASE("versions and steps stay at their end: they never begin anew") {
  SparseTable table(spec_of(RuleKind::kSum, 1));
  constexpr auto kMost = std::numeric_limits<std::uint32_t>::max();
  const std::vector<std::uint64_t> ids = {42};
  const ps::RowMeta last{.id = 42, .version = kMost - 1, .steps = kMost - 1};
  const float zero = 0;
  table.write(std::span(&last, 1), &zero, 0);
  for (int push = 0; push < 3; ++push) {
    float gradient = 1;
    table.apply(ids, &gradient, 0, 1);
    ps::RowMeta meta;
    float row = 0;
    REQUIRE(table.read_row(42, meta, &row));
    CHECK(meta.version == kMost);
    CHECK(meta.steps == kMost);
  }
  table.write(std::span(&last, 1), &zero, 0);
  std::uint32_t version = 0;
  table.versions(ids, &version);
  CHECK(version == kMost);
}

TEST_CASE("more changes than the ring remembers are still reported, each once and in order") {
  const TableSpec spec = spec_of(RuleKind::kSum, 1);
  SparseTable table(spec);
  reference::Table expected(spec);
  constexpr std::size_t kBatch = 4096;
  std::vector<std::uint64_t> ids(kBatch);
  // 8192 rows, each changed a hundred and sixty times: 1.3 million changes.
  for (std::uint64_t push = 0; push < 320; ++push) {
    for (std::size_t i = 0; i < kBatch; ++i) ids[i] = (push % 2) * kBatch + i;
    std::vector<float> gradients(kBatch, 1.0F);
    const auto client = static_cast<std::uint32_t>(push % 4);
    expected.apply(ids, gradients, client, 1);
    table.apply(ids, gradients.data(), client, 1);
  }
  ids.resize(10);
  for (std::size_t i = 0; i < 10; ++i) ids[i] = 1'000'000 + i;
  for (int push = 0; push < 5; ++push) {
    std::vector<float> gradients(10, 1.0F);
    ids[0] = 1'000'000 + static_cast<std::uint64_t>(push) * 100;
    expected.apply(ids, gradients, 9, 1);
    table.apply(ids, gradients.data(), 9, 1);
  }
  for (const std::uint64_t since : {0u, 1u, 100u, 318u, 320u, 322u, 324u, 325u}) {
    require_same_changes(table, expected, since, ~0u, 1000);
    require_same_changes(table, expected, since, 9, 5000);
  }
}

TEST_CASE("a shrunk table uses its memory again") {
  TableSpec spec = spec_of(RuleKind::kSum, 64);
  SparseTable table(spec);
  std::uint64_t bytes = 0;
  for (std::uint64_t round = 0; round < 5; ++round) {
    std::vector<std::uint64_t> ids(20'000);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = round << 32 | i;
    std::vector<float> gradients(ids.size() * 64, 1.0F);
    REQUIRE(table.apply(ids, gradients.data(), 0, 1).rows == ids.size());
    REQUIRE(table.shrink(2, 0) == ids.size());
    if (round == 0) bytes = table.bytes();
  }
  REQUIRE(table.bytes() < bytes + (1u << 23));  // The removals it remembers.
}

TEST_CASE("a table takes memory for its rows, and for few rows little") {
  SparseTable table(spec_of(RuleKind::kSum, 64));
  const auto push = [&](std::uint64_t first, std::size_t count) {
    std::vector<std::uint64_t> ids(count);
    for (std::size_t i = 0; i < count; ++i) ids[i] = first + i;
    std::vector<float> gradients(count * 64, 1.0F);
    table.apply(ids, gradients.data(), 0, 1);
  };
  const std::vector<std::uint64_t> some{0, 999, 1000, 199'999};
  std::vector<float> before(some.size() * 64);
  table.gather(some, before.data());
  push(0, 1);
  CHECK(table.bytes() < 64 << 10);
  const std::uint64_t empty = table.bytes();
  push(1, 999);
  CHECK(table.bytes() > empty + 1000 * (64 * sizeof(float) + 40) - 3 * 4096);
  CHECK(table.bytes() < 600 << 10);
  push(1000, 199'000);
  CHECK(table.bytes() > 200'000 * (64 * sizeof(float) + 40));
  CHECK(table.bytes() < 200'000 * (64 * sizeof(float) + 40 + 64) + (12 << 20));
  std::vector<float> rows(before.size());
  table.gather(some, rows.data());
  for (std::size_t i = 0; i < rows.size(); ++i) REQUIRE(rows[i] == before[i] + 1.0F);
}

TEST_CASE("what is wrong with a table's spec is said") {
  TableSpec spec = spec_of(RuleKind::kSgd, 0);
  REQUIRE_THROWS_WITH_AS(SparseTable{spec}, "table \"rows\": dim must be 1 .. 65536, got 0",
                         InvalidArgument);
  spec.dim = 4;
  spec.slots = {{.slot = 1, .entry = {}}};
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
  spec.slot_shift = 63;
  SparseTable{spec};
  spec.slots[0].slot = 2;
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
  spec.slots = {};
  spec.entry.probability = 0;
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
  spec.entry.probability = 1;
  spec.init = {ps::InitKind::kUniform, 1, -1};
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
  spec.init = {ps::InitKind::kNormal, 0, -1};
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
  spec.init = {};
  spec.name = "";
  REQUIRE_THROWS_AS(SparseTable{spec}, InvalidArgument);
}

}  // namespace
}  // namespace gradring::testing::sparse_table_test
