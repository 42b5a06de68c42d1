// Where rows start: Philox's published vectors, and values that depend on nothing but the seed, the
// table, the id and the column (promise P12).
#include "ps/tables/initial.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ps/tables/dense_table.h"
#include "ps/tables/sparse_table.h"

namespace gradring::testing::initial_test {
namespace {

using ps::Draws;
using ps::Initializer;
using ps::InitKind;

TEST_CASE("Philox 4x32-10 gives its authors' test vectors") {
  // From the known-answer tests of Random123 (Salmon et al.).
  REQUIRE(ps::philox({0, 0, 0, 0}, {0, 0}) ==
          ps::PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(ps::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
          ps::PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(ps::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          ps::PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a row's initial values depend on seed, table, id and column only") {
  for (const InitKind kind : {InitKind::kUniform, InitKind::kNormal}) {
    const Initializer init{kind, -1, 2};
    const Draws draws(3, 4);
    std::vector<float> row(64);
    draws.fill_row(init, 5, 64, row.data());
    for (const std::size_t dim : {1, 2, 3, 17}) {
      std::vector<float> start(dim);
      draws.fill_row(init, 5, dim, start.data());
      REQUIRE(std::equal(start.begin(), start.end(), row.begin()));
    }
    std::vector<float> other(64);
    for (const Draws& others : {Draws(4, 4), Draws(3, 5)}) {
      others.fill_row(init, 5, 64, other.data());
      REQUIRE(other != row);
    }
    draws.fill_row(init, 5 + (std::uint64_t{1} << 32), 64, other.data());
    REQUIRE(other != row);
  }
}

TEST_CASE("initial values are the same bits on every machine") {
  // Recorded once, from this recipe evaluated in 50 digits and rounded.
  const Draws draws(1, 2);
  std::vector<float> row(4);
  draws.fill_row({InitKind::kUniform, 0, 1}, 3, 4, row.data());
  REQUIRE(row == std::vector<float>{0x1.f89b5e0000000p-1F, 0x1.97223e0000000p-1F,
                                    0x1.ab6c740000000p-1F, 0x1.226e000000000p-2F});
  draws.fill_row({InitKind::kNormal, 0, 1}, 3, 4, row.data());
  REQUIRE(row == std::vector<float>{0x1.875a160000000p-5F, -0x1.4f51ce0000000p-3F,
                                    -0x1.020f5e0000000p-3F, 0x1.2cd3f20000000p-1F});
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double fourth = 0;
  double lowest = 0;
  double highest = 0;
};

Moments moments_of(const Initializer& init, std::size_t rows) {
  const Draws draws(11, 12);
  std::vector<float> values(rows * 8);
  for (std::size_t id = 0; id < rows; ++id) draws.fill_row(init, id, 8, &values[id * 8]);
  Moments m{0, 0, 0, values[0], values[0]};
  const auto n = static_cast<double>(values.size());
  for (const float value : values) {
    m.mean += value / n;
    m.lowest = std::min(m.lowest, double{value});
    m.highest = std::max(m.highest, double{value});
  }
  for (const float value : values) {
    m.variance += std::pow(value - m.mean, 2) / n;
    m.fourth += std::pow(value - m.mean, 4) / n;
  }
  return m;
}

TEST_CASE("initial values have the distribution they are named after") {
  const Moments uniform = moments_of({InitKind::kUniform, -1, 3}, 100'000);
  REQUIRE(uniform.mean == doctest::Approx(1).epsilon(0.01));
  REQUIRE(uniform.variance == doctest::Approx(16.0 / 12).epsilon(0.01));
  REQUIRE(uniform.lowest >= -1);
  REQUIRE(uniform.lowest < -0.999);
  REQUIRE(uniform.highest <= 3);
  REQUIRE(uniform.highest > 2.999);
  const Moments normal = moments_of({InitKind::kNormal, 2, 0.5F}, 100'000);
  REQUIRE(normal.mean == doctest::Approx(2).epsilon(0.01));
  REQUIRE(normal.variance == doctest::Approx(0.25).epsilon(0.01));
  REQUIRE(normal.fourth == doctest::Approx(3 * 0.0625).epsilon(0.02));
  REQUIRE(normal.highest < 2 + 0.5 * 6.7);  // The recipe's largest is sqrt(64 ln 2) = 6.66.
  REQUIRE(normal.highest > 2 + 0.5 * 4);
  const Moments constant = moments_of({InitKind::kConstant, 0.25F, 9}, 10);
  REQUIRE(constant.lowest == 0.25);
  REQUIRE(constant.highest == 0.25);
}

TEST_CASE("rows start the same in whatever order they come") {
  ps::TableSpec spec;
  spec.name = "order";
  spec.dim = 3;
  spec.init = {InitKind::kNormal, 0, 1};
  ps::SparseTable up(spec);
  ps::SparseTable down(spec);
  const std::vector<std::uint64_t> ids = {1, 2, 3, ~std::uint64_t{0}};
  const std::vector<std::uint64_t> reversed(ids.rbegin(), ids.rend());
  std::vector<float> before(12);
  up.gather(ids, before.data());
  std::vector<float> zeros(12, 0.0F);
  up.apply(ids, zeros.data(), 0, 1);
  down.apply(reversed, zeros.data(), 0, 1);
  std::vector<float> a(12);
  std::vector<float> b(12);
  up.gather(ids, a.data());
  down.gather(ids, b.data());
  REQUIRE(a == before);
  REQUIRE(b == before);
}

TEST_CASE("a dense table starts the same on any number of shards") {
  ps::TableSpec spec;
  spec.name = "dense";
  spec.kind = ps::TableKind::kDense;
  spec.count = 1003;
  spec.init = {InitKind::kUniform, -1, 1};
  const ps::DenseTable whole(spec, 0, 1);
  for (const std::uint32_t shards : {2u, 3u, 7u, 100u}) {
    std::vector<float> parts;
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      const ps::DenseTable part(spec, shard, shards);
      parts.insert(parts.end(), part.weights().begin(), part.weights().end());
    }
    REQUIRE(std::equal(parts.begin(), parts.end(), whole.weights().begin(), whole.weights().end()));
  }
}

}  // namespace
}  // namespace gradring::testing::initial_test
