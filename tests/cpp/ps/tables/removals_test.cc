// Which rows are gone since when: what an incremental checkpoint has to know of a table.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ps/tables/sparse_table.h"

namespace gradring::ps {
namespace {

TEST_CASE("a million removals are remembered, however many there were") {
  TableSpec spec;
  spec.name = "rows";
  spec.rule.kind = kernels::RuleKind::kSum;
  SparseTable table(spec);
  constexpr std::uint64_t kAtOnce = 1u << 17;
  std::vector<std::uint64_t> ids(kAtOnce);
  std::vector<float> gradients(kAtOnce * table.spec().dim);
  std::vector<std::uint64_t> stamps;  // Before each round of as many removals.
  for (std::uint64_t round = 0; round < 25; ++round) {
    std::iota(ids.begin(), ids.end(), round * kAtOnce);
    table.apply(ids, gradients.data(), 0, 1);
    stamps.push_back(table.stamp());
    REQUIRE(table.shrink(100, 0) == kAtOnce);
    if (round < 8) continue;
    table.begin_snapshot(stamps[round - 7]);  // Eight rounds are a million.
    std::size_t bytes = 0;
    for (bool more = true; more;) {
      SnapshotBytes piece;
      more = table.next_snapshot_piece(1 << 20, piece);
      bytes += piece.size();
    }
    table.end_snapshot();
    CHECK(bytes >= 8 * kAtOnce * sizeof(std::uint64_t));
  }
  CHECK_THROWS_AS(table.begin_snapshot(stamps[0]), InvalidArgument);
}

}  // namespace
}  // namespace gradring::ps
