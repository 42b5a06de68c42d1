// Residuals: what rounding has left out of the rows that a client pushed in fewer bytes, by id; it
// is part of the next push of the same row (error feedback), so that what servers have done and
// what is kept add up to what was given. A push takes them along and adds what is left once its
// fate is known. Owned by whoever drives the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "ps/tables/hash_index.h"

namespace gradring::ps {

class Residuals {
 public:
  explicit Residuals(std::size_t dim) : dim_(dim) {}

  // Moves what is kept to `out` (ids x dim); 0 where nothing is. `ids` are distinct.
  void take(std::span<const std::uint64_t> ids, float* out);
  // `residual` (dim) to what is kept: pushes that were under way together both leave something.
  void add(std::uint64_t id, const float* residual);

  void clear();

  std::size_t size() const { return index_.size(); }  // Rows.

 private:
  std::size_t dim_;
  HashIndex index_;
  Floats rows_;
};

}  // namespace gradring::ps
