// Store: the tables of one shard, and what requests do to them. Knows neither clients' histories
// nor connections; owned by its shard.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "ps/protocol/payloads.h"
#include "ps/shard/domain.h"
#include "ps/tables/dense_table.h"
#include "ps/tables/sparse_table.h"

namespace gradring::ps {

struct Table {
  TableSpec spec;
  std::uint32_t layout = 0;             // layout_of(spec).
  std::unique_ptr<SparseTable> sparse;  // One of the two.
  std::unique_ptr<DenseTable> dense;
  RuleOrder rule_order;      // Of the rule in force.
  std::uint64_t pushes = 0;  // Whole ones; a round counts as one. What staleness is measured in.
  std::uint64_t steps = 0;   // Of the rule, where they are the table's: pushes and rounds.
  std::uint64_t rows_pushed = 0;
  std::uint64_t rows_pulled = 0;
  std::uint64_t refused = 0;
  std::uint64_t not_admitted = 0;
  std::vector<std::uint64_t> staleness;  // Pushes by staleness; the last counts all above.
  // Of a dense table: the last copy that was made for answers, while one of them needs it.
  struct Copy {
    std::uint64_t stamp = 0;
    wire::RowCodec codec = wire::RowCodec::kFloat32;
    std::weak_ptr<const Bytes> bytes;
  };
  Copy copy;

  std::uint64_t stamp() const { return sparse ? sparse->stamp() : dense->stamp(); }
  // In force; the spec keeps what the table was made with.
  const kernels::Rule& rule() const { return sparse ? sparse->spec().rule : dense->spec().rule; }
};

// Gradients as they came: rows (or floats) in a codec, read in place.
struct Gradients {
  std::span<const std::uint64_t> ids;  // Empty for a dense table.
  wire::RowCodec codec = wire::RowCodec::kFloat32;
  std::span<std::byte> values;  // Scratch for the table if they are float32.
};

InvalidArgument no_memory_for(const TableSpec& spec);

struct StoreOptions {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::size_t contribution_bytes = 0;  // As ShardOptions'.
  std::uint64_t dense_bytes = 0;
};

class Store {
 public:
  explicit Store(const StoreOptions& options)
      : options_(options), shard_(options.shard), shards_(options.shards) {}

  // Throws Mismatch if there is one of that name with another spec. Its rule may also be the one in
  // force. Throws std::bad_alloc, and changes nothing, where there is no memory for it.
  Table& make(const TableSpec& spec);
  // If so, make() finds the table from then on, or says what else is wrong.
  bool has_memory_for(const TableSpec& spec);
  Table& make_or_refuse(const TableSpec& spec);  // Throws no_memory_for() then.
  // The latest of all tables', which is that of a new one: what is pushed to it is no older.
  std::uint32_t tick() const;
  // A tick of all tables, those included that are made later.
  void note_tick(std::uint32_t tick) { told_tick_ = std::max(told_tick_, tick); }
  std::uint32_t told_tick() const { return told_tick_; }
  // Throws InvalidArgument that says what there is.
  Table& require(std::uint64_t id, std::uint32_t layout, TableKind kind);
  Table& require(std::uint64_t id, std::uint32_t layout);
  Table& require(std::uint64_t id);
  std::map<std::uint64_t, Table>& all() { return tables_; }
  const std::map<std::uint64_t, Table>& all() const { return tables_; }

  // So that push() or write() of so many rows finds memory whatever there is by then, `fresh` of
  // them ids that are no rows. Throws std::bad_alloc, and no row is changed.
  void reserve(Table& table, const wire::PsHeader& change, std::size_t rows, std::size_t fresh);

  // All throw InvalidArgument, before anything is changed, if the request does not fit the table.
  struct Pushed {
    std::uint64_t seen = 0;  // Pushes that the gradients were computed on.
    bool is_last_part = false;
    bool tells_skipped = false;
  };
  Outcome push(Table& table, const Gradients& gradients, std::uint32_t client,
               const Pushed& pushed);
  // Keeps them for the round. They fit the table.
  void contribute(Table& table, const Gradients& gradients, Contribution& contribution);
  // One step of every table that somebody contributed to: the weighted average over all workers.
  void apply_round(ReadyRound round);
  // For all updates from now on. Throws InvalidArgument if rows cannot go on under it.
  void set_rule(Table& table, const kernels::Rule& rule, RuleOrder order);
  // The same, unless one that comes after it is in force. Whether its settings are.
  bool change_rule(Table& table, const kernels::Rule& rule, RuleOrder order);
  // `steps`: of a sparse table's rule, where they are the table's; none: they stay.
  void write(Table& table, std::uint32_t count, std::span<const std::byte> values,
             std::uint32_t client, std::optional<std::uint64_t> steps);

  // Appends what they read to `out`.
  void read_rows(Table& table, std::span<const std::uint64_t> ids, wire::RowCodec codec,
                 bool with_versions, Bytes& out);
  void read_dense(const Table& table, wire::RowCodec codec, Bytes& out) const;
  // One copy for all who ask between two changes: when a gate opens, every worker does.
  std::shared_ptr<const Bytes> share_dense(Table& table, wire::RowCodec codec) const;

  // Throws InvalidArgument if these are no gradients for the table.
  void require_fit(const Table& table, const Gradients& gradients) const;
  // Throws InvalidArgument if an id belongs to another shard.
  void require_ours(std::span<const std::uint64_t> ids) const;
  void stats(JsonWriter& json) const;

 private:
  void require_fits_payload(const TableSpec& spec) const;
  float* decoded(const Table& table, const Gradients& gradients, std::size_t count);
  void average_rows(Table& table, const std::map<std::uint32_t, Contribution>& given,
                    const std::map<std::uint32_t, double>& weights, float total);
  void average_dense(Table& table, const std::map<std::uint32_t, Contribution>& given,
                     const std::map<std::uint32_t, double>& weights, float total);

  StoreOptions options_;
  std::uint32_t shard_;
  std::uint32_t shards_;
  std::uint32_t told_tick_ = 0;
  std::map<std::uint64_t, Table> tables_;
  Floats scratch_;
  std::vector<std::uint64_t> skipped_;  // Room for what the next push that asks is told.
};

}  // namespace gradring::ps
