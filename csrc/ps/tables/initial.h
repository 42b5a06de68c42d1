// Initial values: f(seed, table, id, column), from Philox 4x32-10 (Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3"). Only +, -, *, / and square roots in IEEE double, in a fixed
// order: the same bits on every machine and with any number of servers (promise P12). Pure,
// callable from any thread. docs/tables.md has the recipe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ps/tables/spec.h"

namespace gradring::ps {

// Philox 4x32-10's bijection of a counter under a key.
using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;
PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

// What tables draw from: one for each pair of seed and table number.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t table);

  // The initial values of columns 0 .. dim-1 of a row.
  void fill_row(const Initializer& init, std::uint64_t id, std::size_t dim, float* out) const;
  // The initial values of floats first .. first+count-1 of a dense table.
  void fill_dense(const Initializer& init, std::uint64_t first, std::size_t count,
                  float* out) const;
  // In [0, 1): decides about the nth push of an id that is no row yet.
  float admission(std::uint64_t id, std::uint32_t nth) const;

 private:
  PhiloxKey key_;
};

}  // namespace gradring::ps
