// What tables take of what the kernel gives a process besides memory.
#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ps/tables/sparse_table.h"

namespace gradring::ps::pages_test {
namespace {

std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

TEST_CASE("many tables of few rows are few mappings, of which a process has 65,530 at most") {
  constexpr std::size_t kTables = 100;
  std::vector<std::unique_ptr<SparseTable>> tables;
  tables.reserve(kTables + 1);
  std::size_t before = 0;
  for (std::size_t nth = 0; nth <= kTables; ++nth) {
    if (nth == 1) before = count_mappings();  // The first one warms up what all share.
    TableSpec spec;
    spec.name = "rows " + std::to_string(nth);
    spec.dim = 2;
    tables.push_back(std::make_unique<SparseTable>(spec));
    float gradient[2] = {1, 1};
    REQUIRE(tables.back()->apply(std::vector<std::uint64_t>{nth}, gradient, 0, 1).rows == 1);
  }
  CHECK(count_mappings() - before < kTables / 2);
}

}  // namespace
}  // namespace gradring::ps::pages_test
