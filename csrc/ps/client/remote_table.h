// RemoteTable: what a client knows of a table: its spec, what rounding has kept, and the counters
// that tell how old the rows are that it has seen. Shared by the calls on the table; the counters
// are atomics, since whoever drives the client takes answers while other threads begin calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ps/client/residuals.h"
#include "ps/tables/spec.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

class RemoteTable {
 public:
  RemoteTable(TableSpec table_spec, std::uint32_t shard_count)
      : spec(std::move(table_spec)),
        id(table_id(spec.name)),
        layout(layout_of(spec)),
        shards(shard_count),
        residuals(spec.dim),
        seen_(std::make_unique<std::atomic<std::uint64_t>[]>(shard_count)) {}

  const TableSpec spec;
  const std::uint64_t id;
  const std::uint32_t layout;
  const std::uint32_t shards;
  Residuals residuals;  // Of rows pushed; whoever drives the client uses it.

  // A request on this table: refused if the servers have another one by that name meanwhile.
  void address(wire::PsHeader& header) const {
    header.table = id;
    header.layout = layout;
  }
  // The shard's count of pushes to the table at the last pull from there.
  std::uint64_t seen(std::uint32_t shard) const {
    return seen_[shard].load(std::memory_order_relaxed);
  }
  void note_seen(std::uint32_t shard, std::uint64_t pushes) {
    seen_[shard].store(pushes, std::memory_order_relaxed);
  }
  std::uint64_t next_push() { return pushes_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // A number for a change of its rule (RuleOrder): above those that were given and noted before.
  std::uint64_t next_rule() { return rules_.fetch_add(1, std::memory_order_relaxed) + 1; }
  void note_rule(std::uint64_t number) {
    std::uint64_t known = rules_.load(std::memory_order_relaxed);
    while (known < number &&
           !rules_.compare_exchange_weak(known, number, std::memory_order_relaxed)) {
    }
  }

 private:
  std::unique_ptr<std::atomic<std::uint64_t>[]> seen_;  // Statistics: relaxed.
  std::atomic<std::uint64_t> pushes_{0};
  std::atomic<std::uint64_t> rules_{0};  // Whatever it is, a change succeeds: relaxed.
};

// What became of a push, over all of its parts.
struct PushReport {
  std::uint64_t rows = 0;          // Distinct ones.
  std::uint64_t refused = 0;       // Their gradient was not finite: they stay as they were.
  std::uint64_t not_admitted = 0;  // Counted only.
  std::uint64_t staleness = 0;     // The largest of any shard and table.
};

}  // namespace gradring::ps
