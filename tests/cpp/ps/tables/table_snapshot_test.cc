// Snapshots of tables: what was there when they began, while updates go on; increments upon a base;
// and bytes that are damaged or hostile.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/crc32c.h"
#include "base/error.h"
#include "ps/tables/dense_table.h"
#include "ps/tables/partition.h"
#include "ps/tables/sparse_table.h"

namespace gradring::testing::table_snapshot_test {
namespace {

using kernels::RuleKind;
using ps::DenseTable;
using ps::SnapshotBytes;
using ps::SparseTable;
using ps::TableSpec;
using Piece = std::vector<std::byte>;

TableSpec sparse_spec() {
  TableSpec spec;
  spec.name = "rows";
  spec.dim = 6;
  spec.rule.kind = RuleKind::kAdagrad;
  spec.rule.lr = 0.1;
  spec.init = {ps::InitKind::kNormal, 0, 1};
  spec.slot_shift = 32;
  spec.slots = {{.slot = 1, .entry = {3, 1}}};  // Ids from 2^32 on are rows at the third push.
  return spec;
}

// Everything of a table, by id.
struct State {
  std::map<std::uint64_t, std::vector<float>> rows;  // Meta and floats.
  std::uint64_t stamp = 0;
  friend bool operator==(const State&, const State&) = default;
};

State state_of(const SparseTable& table) {
  State state;
  state.stamp = table.stamp();
  const SparseTable::Rows rows = table.read(0, table.size() + 1);
  for (std::size_t i = 0; i < rows.metas.size(); ++i) {
    const ps::RowMeta& meta = rows.metas[i];
    std::vector<float>& row = state.rows[meta.id];
    for (const std::uint64_t note :
         {meta.stamp, std::uint64_t{meta.version}, std::uint64_t{meta.steps},
          std::uint64_t{meta.writer}, std::uint64_t{meta.tick}})
      row.push_back(static_cast<float>(note));
    row.push_back(meta.score);
    const auto from = rows.floats.begin() + static_cast<std::ptrdiff_t>(i * table.row_floats());
    row.insert(row.end(), from, from + static_cast<std::ptrdiff_t>(table.row_floats()));
  }
  return state;
}

void push_some(SparseTable& table, std::mt19937_64& random, std::size_t most) {
  std::set<std::uint64_t> ids;
  for (std::size_t i = 0; i < 1 + random() % most; ++i)
    ids.insert(random() % 500 + (random() % 4 == 0 ? std::uint64_t{1} << 32 : 0));
  const std::vector<std::uint64_t> list(ids.begin(), ids.end());
  std::vector<float> gradients(list.size() * table.spec().dim);
  std::normal_distribution<float> normal;
  for (float& value : gradients) value = normal(random);
  table.apply(list, gradients.data(), static_cast<std::uint32_t>(random() % 3), 1);
}

void change_some(SparseTable& table, std::mt19937_64& random) {
  const std::uint64_t what = random() % 10;
  if (what == 0) {
    table.set_tick(table.tick() + 1);
  } else if (what == 1) {
    table.shrink(static_cast<float>(random() % 2) * 1.5F, 2);
  } else {
    push_some(table, random, 60);
  }
}

// The rest of a snapshot, in pieces; `between` is called after each one. Every other one is read as
// if for a disk.
template <typename Table, typename Between>
std::vector<Piece> read_out(Table& table, std::size_t most_bytes, Between&& between) {
  std::vector<Piece> pieces;
  for (;;) {
    SnapshotBytes next(pieces.size() % 2 == 0 ? SnapshotBytes::Reader::kDisk
                                              : SnapshotBytes::Reader::kProcessor);
    if (!table.next_snapshot_piece(most_bytes, next)) break;
    REQUIRE(next.checksum(0, next.size()) == crc32c(next.view()));
    pieces.emplace_back(next.view().begin(), next.view().end());
    between();
  }
  table.end_snapshot();
  return pieces;
}

void load(SparseTable& table, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) table.load_piece(piece, nullptr, nullptr);
}

TEST_CASE("a snapshot is the table as it was when it began, whatever happens meanwhile") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    SparseTable table(sparse_spec());
    for (int i = 0; i < 20; ++i) change_some(table, random);
    const State before = state_of(table);
    table.begin_snapshot(0);
    // Of the larger ones whole runs of rows are long enough to pass by the caches.
    const std::size_t most = seed % 2 == 0 ? 1 + random() % 2000 : 6000 + random() % 20'000;
    const auto pieces = read_out(table, most, [&] { change_some(table, random); });
    SparseTable loaded(sparse_spec());
    load(loaded, pieces);
    REQUIRE(state_of(loaded) == before);
  }
}

TEST_CASE("the counts of ids that are no rows yet are in a snapshot as they were") {
  SparseTable table(sparse_spec());
  const std::uint64_t first = std::uint64_t{1} << 32;
  std::vector<std::uint64_t> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + i;
  const auto push = [&](SparseTable& to) {
    std::vector<float> gradients(ids.size() * 6, 1.0F);
    return to.apply(ids, gradients.data(), 0, 1);
  };
  REQUIRE(push(table).not_admitted == 300);
  table.begin_snapshot(0);
  REQUIRE(push(table).not_admitted == 300);
  REQUIRE(push(table).rows == 300);
  const auto pieces = read_out(table, 1000, [] {});
  SparseTable loaded(sparse_spec());
  load(loaded, pieces);
  REQUIRE(loaded.size() == 0);
  REQUIRE(push(loaded).not_admitted == 300);
  REQUIRE(push(loaded).rows == 300);
}

TEST_CASE("a base and the increments upon it are the whole table") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    SparseTable table(sparse_spec());
    for (int i = 0; i < 20; ++i) change_some(table, random);
    table.begin_snapshot(0);
    std::uint64_t since = table.stamp();
    std::vector<std::vector<Piece>> saved = {
        read_out(table, 3000, [&] { change_some(table, random); })};
    State last;
    for (int increment = 0; increment < 3; ++increment) {
      for (int i = 0; i < 6; ++i) change_some(table, random);
      last = state_of(table);
      table.begin_snapshot(since);
      since = table.stamp();
      saved.push_back(read_out(table, 500, [&] { change_some(table, random); }));
    }
    SparseTable loaded(sparse_spec());
    for (const auto& pieces : saved) load(loaded, pieces);
    REQUIRE(state_of(loaded) == last);
    // And it goes on from there: an increment upon what was loaded.
    SparseTable again(sparse_spec());
    for (const auto& pieces : saved) load(again, pieces);
    for (int i = 0; i < 5; ++i) change_some(loaded, random);
    last = state_of(loaded);
    loaded.begin_snapshot(since);
    load(again, read_out(loaded, 500, [] {}));
    REQUIRE(state_of(again) == last);
  }
}

TEST_CASE("an increment without changes has no rows; one upon a forgotten base is refused") {
  SparseTable table(sparse_spec());
  const std::vector<std::uint64_t> ids = {1, 2, 3};
  for (int push = 0; push < 2; ++push) {
    std::vector<float> gradients(18, 1.0F);
    table.apply(ids, gradients.data(), 0, 1);
  }
  table.begin_snapshot(table.stamp());
  SnapshotBytes piece;
  REQUIRE(table.next_snapshot_piece(1 << 20, piece));
  REQUIRE(piece.size() == 24 + 40);                             // The table's head.
  REQUIRE_THROWS_AS(table.begin_snapshot(0), InvalidArgument);  // One at a time.
  table.end_snapshot();
  REQUIRE_THROWS_AS(table.begin_snapshot(table.stamp() + 1), InvalidArgument);
  table.begin_snapshot(0);
  const auto pieces = read_out(table, 1 << 20, [] {});
  SparseTable loaded(sparse_spec());
  load(loaded, pieces);
  REQUIRE_THROWS_AS(loaded.begin_snapshot(1), InvalidArgument);
}

TEST_CASE("a table that is loaded for other shards has its own rows only") {
  std::mt19937_64 random(3);
  SparseTable table(sparse_spec());
  for (int i = 0; i < 20; ++i) push_some(table, random, 100);
  table.begin_snapshot(0);
  const auto pieces = read_out(table, 700, [] {});
  std::size_t rows = 0;
  for (std::uint32_t shard = 0; shard < 3; ++shard) {
    SparseTable part(sparse_spec());
    for (const Piece& piece : pieces)
      part.load_piece(
          piece,
          [](void* context, std::uint64_t id) {
            return ps::shard_of(id, 3) == *static_cast<std::uint32_t*>(context);
          },
          &shard);
    const State state = state_of(part);
    for (const auto& [id, row] : state.rows) {
      REQUIRE(ps::shard_of(id, 3) == shard);
      REQUIRE(state_of(table).rows.at(id) == row);
    }
    rows += part.size();
  }
  REQUIRE(rows == table.size());
}

TEST_CASE("damaged pieces are refused or loaded, but do no harm") {
  std::mt19937_64 random(5);
  SparseTable table(sparse_spec());
  for (int i = 0; i < 10; ++i) change_some(table, random);
  table.shrink(2, 0);
  table.begin_snapshot(0);
  const Piece whole = read_out(table, 1 << 20, [] {}).front();
  std::set<std::size_t> ends;  // Of whole records.
  for (std::size_t at = 0; at < whole.size(); ends.insert(at)) {
    std::uint64_t body_bytes = 0;
    std::memcpy(&body_bytes, &whole[at + 16], sizeof body_bytes);
    at += 24 + body_bytes;
  }
  REQUIRE(ends.size() >= 2);
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 1 + bytes / 40) {
    SparseTable loaded(sparse_spec());
    if (bytes == 0) {
      loaded.load_piece({}, nullptr, nullptr);
      continue;
    }
    bool is_refused = false;
    try {
      loaded.load_piece(std::span(whole).first(bytes), nullptr, nullptr);
    } catch (const ProtocolError&) {
      is_refused = true;
    }
    REQUIRE(is_refused == !ends.contains(bytes));
  }
  std::size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Piece damaged = whole;
    for (std::uint64_t flips = 0; flips < 1 + random() % 3; ++flips)
      damaged[random() % (round % 2 == 0 ? 96 : damaged.size())] ^=
          static_cast<std::byte>(1u << random() % 8);
    SparseTable loaded(sparse_spec());
    try {
      loaded.load_piece(damaged, nullptr, nullptr);
    } catch (const ProtocolError&) {
      ++refused;
    }
    push_some(loaded, random, 20);  // It is in order, whatever it has.
    REQUIRE(loaded.size() == state_of(loaded).rows.size());
  }
  REQUIRE(refused > 500);
}

TEST_CASE("a piece of another table is refused") {
  TableSpec other = sparse_spec();
  other.dim = 7;
  SparseTable table(sparse_spec());
  SparseTable wider(other);
  std::mt19937_64 random(5);
  push_some(table, random, 20);
  table.begin_snapshot(0);
  const Piece piece = read_out(table, 1 << 20, [] {}).front();
  REQUIRE_THROWS_AS(wider.load_piece(piece, nullptr, nullptr), ProtocolError);
  REQUIRE_THROWS_AS(wider.load_piece(std::span(piece).subspan(64), nullptr, nullptr),
                    ProtocolError);
  other = sparse_spec();
  other.name = "others";
  SparseTable named(other);
  REQUIRE_THROWS_AS(named.load_piece(piece, nullptr, nullptr), ProtocolError);
}

TableSpec dense_spec(std::uint64_t count) {
  TableSpec spec;
  spec.name = "dense";
  spec.kind = ps::TableKind::kDense;
  spec.count = count;
  spec.rule.kind = RuleKind::kAdam;
  spec.rule.lr = 0.01;
  spec.init = {ps::InitKind::kUniform, -1, 1};
  return spec;
}

bool step(DenseTable& table, float value) {
  std::vector<float> gradient(table.count(), value);
  return table.apply(gradient.data());
}

std::vector<Piece> save(DenseTable& table, std::uint64_t since) {
  table.begin_snapshot(since);
  step(table, 1);  // The snapshot was taken before.
  return read_out(table, 1000, [] {});
}

TEST_CASE("a dense table takes steps, refuses what is not finite, and is written whole") {
  DenseTable table(dense_spec(100), 0, 1);
  const std::vector<float> start(table.weights().begin(), table.weights().end());
  REQUIRE(!step(table, std::numeric_limits<float>::quiet_NaN()));
  REQUIRE(std::equal(start.begin(), start.end(), table.weights().begin()));
  REQUIRE(table.steps() == 0);
  REQUIRE(step(table, 1));
  REQUIRE(table.steps() == 1);
  REQUIRE(table.stamp() == 2);
  REQUIRE(table.weights()[0] != start[0]);
  table.write(start, {}, 7);
  REQUIRE(table.steps() == 1);
  const std::vector<float> state(table.state().size(), 0.0F);
  table.write(start, state, 7);
  REQUIRE(table.steps() == 7);
  REQUIRE(std::equal(start.begin(), start.end(), table.weights().begin()));
  REQUIRE_THROWS_AS(table.write(std::span(start).first(99), {}, 0), InvalidArgument);
  TableSpec row_wise = dense_spec(4);
  row_wise.rule.kind = RuleKind::kRowWiseAdagrad;
  REQUIRE_THROWS_AS(DenseTable(row_wise, 0, 1), InvalidArgument);
}

TEST_CASE("a dense table's snapshot is loaded by any number of shards") {
  constexpr std::uint64_t kCount = 600'001;  // Several records.
  DenseTable table(dense_spec(kCount), 0, 1);
  step(table, 0.5F);
  step(table, -0.25F);
  const std::vector<float> weights(table.weights().begin(), table.weights().end());
  const std::vector<float> state(table.state().begin(), table.state().end());
  const auto pieces = save(table, 0);
  REQUIRE(save(table, table.stamp()).empty());
  REQUIRE(!save(table, table.stamp() - 1).empty());
  for (const std::uint32_t shards : {1u, 3u}) {
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      DenseTable part(dense_spec(kCount), shard, shards);
      for (const Piece& piece : pieces) part.load_piece(piece);
      REQUIRE(part.steps() == 2);
      const std::size_t begin = part.range().begin;
      REQUIRE(std::equal(part.weights().begin(), part.weights().end(),
                         weights.begin() + static_cast<std::ptrdiff_t>(begin)));
      for (std::size_t field = 0; field < 2; ++field)
        REQUIRE(std::equal(part.weights().size() * field + part.state().begin(),
                           part.weights().size() * (field + 1) + part.state().begin(),
                           state.begin() + static_cast<std::ptrdiff_t>(field * kCount + begin)));
    }
  }
}

TEST_CASE("damaged pieces of a dense table are refused or loaded, but do no harm") {
  std::mt19937_64 random(9);
  DenseTable table(dense_spec(200), 0, 1);
  step(table, 1);
  const Piece whole = save(table, 0).front();
  std::size_t refused = 0;
  for (int round = 0; round < 1000; ++round) {
    Piece damaged = whole;
    damaged[random() % 56] ^= static_cast<std::byte>(1u << random() % 8);
    if (round % 4 == 0) damaged.resize(random() % damaged.size());
    DenseTable loaded(dense_spec(200), 0, 1);
    try {
      loaded.load_piece(damaged);
    } catch (const ProtocolError&) {
      ++refused;
    }
    step(loaded, 1);
  }
  REQUIRE(refused > 500);
}

}  // namespace
}  // namespace gradring::testing::table_snapshot_test
