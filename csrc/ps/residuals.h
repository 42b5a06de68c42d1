// Residuals: what rounding has left out of the rows that a client pushed in fewer bytes, by id; it
// is part of the next push of the same row (error feedback), so that what has been sent and what is
// kept add up to what was given. Owned by whoever drives the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "ps/hash_index.h"

namespace gradring::ps {

class Residuals {
 public:
  explicit Residuals(std::size_t dim) : dim_(dim) {}

  // `out` (ids x dim): what is kept; 0 where nothing is. `ids` are distinct.
  void read(std::span<const std::uint64_t> ids, float* out) const;
  // Keeps `residuals` (ids x dim) for the rows that were sent. A row of `sent` that is not finite
  // is refused by the server, residual and all: what was kept stays.
  void write(std::span<const std::uint64_t> ids, const float* sent, const float* residuals);

  void clear();

  std::size_t size() const { return index_.size(); }  // Rows.

 private:
  std::size_t dim_;
  HashIndex index_;
  Floats rows_;
};

}  // namespace gradring::ps
