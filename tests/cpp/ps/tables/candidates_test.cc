// Snapshots of ids that are no rows yet: as many as there may be, a slice takes few.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/crc32c.h"
#include "ps/tables/sparse_table.h"

namespace gradring::ps::candidates_test {
namespace {

TEST_CASE("of very many ids that are no rows yet a slice takes few, and all are read out") {
  constexpr std::size_t kMost = 64 << 10;
  constexpr std::size_t kCandidates = 200'000;
  constexpr std::size_t kInSegment = 2 * kCandidates / 128 * 16;  // Bytes, at most.
  TableSpec spec;
  spec.name = "rows";
  spec.dim = 6;
  spec.entry = {.count = 3};
  SparseTable table(spec);
  std::vector<std::uint64_t> ids(kCandidates);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::vector<float> gradients(ids.size() * 6, 1.0F);
  REQUIRE(table.apply(ids, gradients.data(), 0, 1).not_admitted == kCandidates);
  const std::uint64_t bytes = table.bytes();
  std::uint64_t most_aside = 0;  // What was copied and waits.
  table.begin_snapshot(0);
  std::vector<std::byte> whole;
  for (SnapshotBytes slice; table.next_snapshot_piece(kMost, slice); slice.cut_to(0)) {
    REQUIRE(slice.size() <= kMost + kInSegment);
    most_aside = std::max(most_aside, table.bytes() - bytes);
    whole.insert(whole.end(), slice.view().begin(), slice.view().end());
  }
  table.end_snapshot();
  CHECK(most_aside <= kInSegment);
  CHECK(whole.size() == 24 + 40 + 128 * 24 + kCandidates * 16);
  CHECK(crc32c(whole) == 0x73f69e21);  // A record for each segment, in their order.
}

}  // namespace
}  // namespace gradring::ps::candidates_test
