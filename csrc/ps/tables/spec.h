// What a table is: everything that client and server must agree on when it is made. Plain values;
// two clients that ask for one name with different specs get Mismatch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/update.h"
#include "ps/tables/partition.h"

namespace gradring::ps {

// The values are part of the wire format and of checkpoints: append, never renumber.
enum class TableKind : std::uint8_t { kSparse = 0, kDense = 1 };

enum class InitKind : std::uint8_t {
  kConstant = 0,  // a
  kUniform = 1,   // Between a and b.
  kNormal = 2,    // Mean a, standard deviation b.
};

// Where a new row starts: f(seed, table, id, column) by Philox 4x32-10 (Salmon et al. 2011), so it
// depends neither on the order of arrival nor on the number of servers (promise P12).
struct Initializer {
  InitKind kind = InitKind::kConstant;
  float a = 0;
  float b = 0;
  friend bool operator==(const Initializer&, const Initializer&) = default;
};

// When an id that was never pushed becomes a row. Until then it reads as its initial value and
// gradients for it are only counted.
struct Entry {
  std::uint32_t count = 0;  // Pushes it takes; 0 and 1: the first one.
  float probability = 1;    // Of every push, decided by f(seed, table, id, nth push).
  friend bool operator==(const Entry&, const Entry&) = default;
};

// Exceptions for the ids of one feature: those with id >> slot_shift == slot.
struct SlotSettings {
  std::uint64_t slot = 0;
  double lr_scale = 1;
  Entry entry;
  std::uint32_t unseen_ticks = 0;  // See TableSpec.
  friend bool operator==(const SlotSettings&, const SlotSettings&) = default;
};

struct TableSpec {
  std::string name;
  TableKind kind = TableKind::kSparse;
  std::uint32_t dim = 1;    // Sparse: floats a row.
  std::uint64_t count = 0;  // Dense: floats in all, over all shards.
  kernels::Rule rule;
  Initializer init;
  std::uint64_t seed = 0;
  // Sparse only.
  Entry entry;
  std::uint32_t unseen_ticks = 0;  // Expires after this many ticks without a push; 0: never.
  float score_decay = 1;  // A row's score is the number of its pushes, times this at every tick.
  std::uint32_t slot_shift = 64;  // 64: there are no slots.
  std::vector<SlotSettings> slots;

  friend bool operator==(const TableSpec&, const TableSpec&) = default;
};

// The table's number on every server: a hash of its name, so that nobody has to hand numbers out.
std::uint64_t table_id(const std::string& name);
// A hash of what a table's bytes mean: kind, lengths, rule and state. Never 0. Settings that may
// change while the table stays (require_successor) are not in it.
std::uint32_t layout_of(const TableSpec& spec);

// A dense table's part on one shard. Whoever clips by the norm has to see all of the gradient, so
// such a table is whole on one shard; all others are cut.
DenseRange dense_range(const TableSpec& spec, std::uint32_t shard, std::uint32_t shards);

// Throws InvalidArgument that names the table and what is wrong.
void require_valid(const TableSpec& spec);
// Throws InvalidArgument if rows of the table cannot go on under this rule: it makes no sense, is
// another rule, or keeps another state.
void require_successor(const TableSpec& spec, const kernels::Rule& rule);

// In what two specs differ first, both values in it: "dim: 4 there, 8 here".
std::string difference(const TableSpec& there, const TableSpec& here);

}  // namespace gradring::ps
