// PsProbe: reads a shard from beside it, for the judgement at the end and of checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ps/shard/shard.h"

namespace gradring::sim {

class PsProbe {
 public:
  PsProbe(ps::Shard& shard, Time now);
  ~PsProbe();
  PsProbe(const PsProbe&) = delete;
  PsProbe& operator=(const PsProbe&) = delete;

  // A row of the table; empty if there is no such table.
  std::vector<float> row(const std::string& table, std::uint64_t id);

  // A dense table's part, whole: its steps, weights and state as bytes; empty if there is none.
  std::vector<std::byte> dense(const std::string& table);

  // What the shard says of a table in its stats, up to its rule; "" if it has none.
  std::string rule(const std::string& table) const;

  // Every row of a sparse table, whole: its notes and floats as bytes, by id.
  std::map<std::uint64_t, std::vector<std::byte>> rows(const std::string& table);

 private:
  ps::Frame ask(ps::Frame request);

  ps::Shard& shard_;
  Time now_;
};

}  // namespace gradring::sim
