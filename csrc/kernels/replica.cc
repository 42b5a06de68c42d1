#include "kernels/replica.h"

#include <algorithm>

#include "base/error.h"

namespace gradring::kernels {
namespace {

constexpr std::size_t kLine = 64 / sizeof(float);
constexpr std::size_t kAhead = 4;      // Rows: far enough for memory, near enough for the cache.
constexpr std::size_t kMostLines = 4;  // The CPU sees the rest of a row coming by itself.

void prefetch(const Replica& replica, std::span<const std::int64_t> slots, std::size_t i) {
  if (i + kAhead >= slots.size()) return;
  const std::size_t at = static_cast<std::size_t>(slots[i + kAhead]) * replica.dim;
  const std::size_t end = std::min(replica.dim, kMostLines * kLine);
  for (std::size_t column = 0; column < end; column += kLine) {
    __builtin_prefetch(replica.weights + at + column, 1);
    __builtin_prefetch(replica.base + at + column, 1);
  }
}

void offer_row(const float* __restrict weights, float* __restrict base, float* __restrict delta,
               std::size_t dim, float workers) {
  for (std::size_t j = 0; j < dim; ++j) {
    delta[j] = (weights[j] - base[j]) / workers;  // By 1 it is exact.
    base[j] += delta[j];
  }
}

// Returns nothing: squares are added up apart, so that this loop has no order to keep.
void accept_row(float* __restrict weights, float* __restrict base, const float* __restrict server,
                float* __restrict moved, std::size_t dim) {
  for (std::size_t j = 0; j < dim; ++j) {
    const float change = server[j] - base[j];
    const bool is_base = (weights[j] == base[j]) & (change != 0);
    const float sum = weights[j] + change;
    weights[j] = is_base ? server[j] : sum;
    base[j] = server[j];
    moved[j] = change;
  }
}

double squares(const float* values, std::size_t count) {
  double sums[4] = {};
  std::size_t j = 0;
  for (; j + 4 <= count; j += 4)
    for (std::size_t k = 0; k < 4; ++k)
      sums[k] += static_cast<double>(values[j + k]) * static_cast<double>(values[j + k]);
  for (; j < count; ++j) sums[0] += static_cast<double>(values[j]) * static_cast<double>(values[j]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

void require_slots(const Replica& replica, std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots)
    if (static_cast<std::uint64_t>(slot) >= replica.rows)
      throw InvalidArgument(str("slot ", slot, " of a replica with ", replica.rows, " rows"));
}

void offer_rows(const Replica& replica, std::span<const std::int64_t> slots, float workers,
                float* delta) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    prefetch(replica, slots, i);
    const std::size_t at = static_cast<std::size_t>(slots[i]) * replica.dim;
    offer_row(replica.weights + at, replica.base + at, delta + i * replica.dim, replica.dim,
              workers);
  }
}

double accept_rows(const Replica& replica, std::span<const std::int64_t> slots,
                   const float* server) {
  constexpr std::size_t kPiece = 1024;  // Columns at a time, so that `moved` is on the stack.
  float moved[kPiece];
  double total = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    prefetch(replica, slots, i);
    const std::size_t at = static_cast<std::size_t>(slots[i]) * replica.dim;
    for (std::size_t begin = 0; begin < replica.dim; begin += kPiece) {
      const std::size_t count = std::min(kPiece, replica.dim - begin);
      accept_row(replica.weights + at + begin, replica.base + at + begin,
                 server + i * replica.dim + begin, moved, count);
      total += squares(moved, count);
    }
  }
  return total;
}

}  // namespace gradring::kernels
