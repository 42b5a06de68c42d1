// What a sparse table must do, said slowly: std::map and loops. For tests.
#pragma once

#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "ps/tables/initial.h"
#include "ps/tables/sparse_table.h"

namespace gradring::reference {

struct Row {
  ps::RowMeta meta;
  std::vector<float> floats;
};

class Table {
 public:
  explicit Table(const ps::TableSpec& spec);

  std::vector<float> gather(std::span<const std::uint64_t> ids) const;
  ps::Applied apply(std::span<const std::uint64_t> ids, std::vector<float> gradients,
                    std::uint32_t client, std::uint64_t step);
  void write(std::span<const ps::RowMeta> metas, const std::vector<float>& floats,
             std::uint32_t client);
  std::size_t set_tick(std::uint32_t tick);
  std::size_t shrink(float least_score, std::uint32_t unseen_ticks);
  // Every id that changed after `since` by others than `client`, in the order of their stamps.
  std::multimap<std::uint64_t, std::uint64_t> changed(std::uint64_t since,
                                                      std::uint32_t client) const;

  const std::map<std::uint64_t, Row>& rows() const { return rows_; }
  const std::map<std::uint64_t, std::uint32_t>& candidates() const { return candidates_; }
  std::uint64_t stamp() const { return stamp_; }

 private:
  bool admits(std::uint64_t id);
  template <typename IsOver>
  std::size_t remove_where(IsOver&& is_over);

  ps::TableSpec spec_;
  ps::Draws draws_;
  std::map<std::uint64_t, Row> rows_;
  std::map<std::uint64_t, std::uint32_t> candidates_;  // id -> pushes.
  std::map<std::uint64_t, std::uint32_t> candidates_tick_;
  std::uint64_t stamp_ = 0;
  std::uint32_t tick_ = 0;
  std::uint32_t highest_gone_ = 0;
};

}  // namespace gradring::reference
