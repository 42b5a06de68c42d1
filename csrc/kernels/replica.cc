#include "kernels/replica.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/prefetch.h"
#include "kernels/clones.h"

namespace gradring::kernels {
namespace {

constexpr std::size_t kAhead = 8;  // Rows.
constexpr std::size_t kIdsAhead = 16;
constexpr std::int32_t kMostTouches = std::numeric_limits<std::int32_t>::max();

GRADRING_PREFETCHES inline void fetch_after(const Replica& replica,
                                            std::span<const std::int64_t> slots, std::size_t i) {
  if (i + kAhead >= slots.size()) return;
  const std::size_t at = static_cast<std::size_t>(slots[i + kAhead]) * replica.dim;
  prefetch_row(replica.weights + at, replica.dim);
  prefetch_row(replica.base + at, replica.dim);
}

inline __attribute__((always_inline)) void offer_row(const float* __restrict weights,
                                                     float* __restrict base,
                                                     float* __restrict delta, std::size_t dim,
                                                     float workers) {
  for (std::size_t j = 0; j < dim; ++j) {
    delta[j] = (weights[j] - base[j]) / workers;  // By 1 it is exact.
    base[j] += delta[j];
  }
}

// Of bits: zeros have two signs.
inline __attribute__((always_inline)) bool differ(const float* __restrict one,
                                                  const float* __restrict other,
                                                  std::size_t count) {
  std::uint32_t bits = 0;
  for (std::size_t j = 0; j < count; ++j)
    bits |= std::bit_cast<std::uint32_t>(one[j]) ^ std::bit_cast<std::uint32_t>(other[j]);
  return bits != 0;
}

// Values, not bits: zeros are equal whatever their signs. Without a jump until the row's end.
inline __attribute__((always_inline)) bool has_progress(const float* __restrict weights,
                                                        const float* __restrict base,
                                                        std::size_t dim) {
  constexpr float kMost = std::numeric_limits<float>::max();
  std::uint32_t differing = 0, not_finite = 0;
  for (std::size_t j = 0; j < dim; ++j) {
    differing |= weights[j] != base[j] ? 1U : 0U;
    not_finite |= std::abs(base[j]) <= kMost ? 0U : 1U;
  }
  return differing != 0 && not_finite == 0;
}

// Returns nothing: squares are added up apart, so that this loop has no order to keep.
inline __attribute__((always_inline)) void accept_row(float* __restrict weights,
                                                      float* __restrict base,
                                                      const float* __restrict server,
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

inline __attribute__((always_inline)) double squares(const float* values, std::size_t count) {
  constexpr std::size_t kLanes = 8;
  double sums[kLanes] = {};
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k)
      sums[k] += static_cast<double>(values[j + k]) * static_cast<double>(values[j + k]);
  for (; j < count; ++j) sums[0] += static_cast<double>(values[j]) * static_cast<double>(values[j]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Where the search for an id begins, in a table of mask + 1 places.
inline std::size_t id_home(std::uint64_t id, std::size_t mask) {
  return ((id * 0x9E3779B97F4A7C15U) >> 32) & mask;
}

std::size_t mask_of(std::span<const std::int64_t> places) {
  if (places.empty() || (places.size() & (places.size() - 1)) != 0)
    throw InvalidArgument(str("a map of ids with ", places.size(), " places"));
  return places.size() - 1;
}

}  // namespace

void require_slots(const Replica& replica, std::span<const std::int64_t> slots) {
  for (const std::int64_t slot : slots)
    if (static_cast<std::uint64_t>(slot) >= replica.rows)
      throw InvalidArgument(str("slot ", slot, " of a replica with ", replica.rows, " rows"));
}

void mark_rows(std::span<const std::int64_t> slots, std::span<std::int32_t> touches) {
  require_slots({nullptr, nullptr, touches.size(), 0}, slots);
  // Negative: was seen in this call. Without a jump, which nobody could predict: frequent rows are
  // there several times (measured: 3 instead of 13 ns a slot).
  for (const std::int64_t slot : slots) {
    std::int32_t& touched = touches[static_cast<std::size_t>(slot)];
    const std::int32_t next = ~(touched + (touched < kMostTouches ? 1 : 0));
    touched = touched < 0 ? touched : next;
  }
  for (const std::int64_t slot : slots) {
    std::int32_t& touched = touches[static_cast<std::size_t>(slot)];
    touched = touched < 0 ? ~touched : touched;
  }
}

GRADRING_CLONES std::size_t find_progress(const Replica& replica,
                                          std::span<const std::int64_t> slots,
                                          std::int64_t* found) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    fetch_after(replica, slots, i);
    const std::size_t at = static_cast<std::size_t>(slots[i]) * replica.dim;
    found[count] = slots[i];
    count += has_progress(replica.weights + at, replica.base + at, replica.dim) ? 1 : 0;
  }
  return count;
}

GRADRING_CLONES void offer_rows(const Replica& replica, std::span<const std::int64_t> slots,
                                float workers, float* delta) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    fetch_after(replica, slots, i);
    const std::size_t at = static_cast<std::size_t>(slots[i]) * replica.dim;
    offer_row(replica.weights + at, replica.base + at, delta + i * replica.dim, replica.dim,
              workers);
  }
}

GRADRING_CLONES double accept_rows(const Replica& replica, std::span<const std::int64_t> slots,
                                   const float* server) {
  constexpr std::size_t kPiece = 1024;  // Columns at a time, so that `moved` is on the stack.
  float moved[kPiece];
  double total = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    fetch_after(replica, slots, i);
    const std::size_t at = static_cast<std::size_t>(slots[i]) * replica.dim;
    for (std::size_t begin = 0; begin < replica.dim; begin += kPiece) {
      const std::size_t count = std::min(kPiece, replica.dim - begin);
      float* base = replica.base + at + begin;
      const float* news = server + i * replica.dim + begin;
      // Most rows that come back are as this worker has left them.
      if (!differ(base, news, count)) continue;
      accept_row(replica.weights + at + begin, base, news, moved, count);
      total += squares(moved, count);
    }
  }
  return total;
}

void find_ids(const IdTable& table, std::span<const std::uint64_t> ids, std::int64_t* found) {
  const std::size_t mask = mask_of(table.slots);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kIdsAhead < ids.size())
      prefetch_near(table.slots.data() + id_home(ids[i + kIdsAhead], mask));
    std::size_t place = id_home(ids[i], mask);
    found[i] = -1;
    for (std::size_t probes = 0; table.slots[place] >= 0; ++probes, place = (place + 1) & mask) {
      const auto slot = static_cast<std::size_t>(table.slots[place]);
      if (slot >= table.ids.size() || probes > mask)
        throw InvalidArgument("a map of ids that is full or knows slots without an id");
      if (table.ids[slot] == ids[i]) {
        found[i] = table.slots[place];
        break;
      }
    }
  }
}

void place_ids(std::span<std::int64_t> slots, std::span<const std::uint64_t> ids, std::size_t first,
               std::size_t end) {
  const std::size_t mask = mask_of(slots);
  if (first > end || end > ids.size() || end > mask)
    throw InvalidArgument(str("slots ", first, " to ", end, " of ", ids.size(),
                              " ids in a map with ", slots.size(), " places"));
  for (std::size_t slot = first; slot < end; ++slot) {
    if (slot + kIdsAhead < end) prefetch_near(slots.data() + id_home(ids[slot + kIdsAhead], mask));
    std::size_t place = id_home(ids[slot], mask);
    for (std::size_t probes = 0; slots[place] >= 0; ++probes, place = (place + 1) & mask)
      if (probes > mask) throw InvalidArgument("a map of ids that is full");
    slots[place] = static_cast<std::int64_t>(slot);
  }
}

std::size_t merge_rows(std::span<const std::int64_t> slots, const float* rows, std::size_t dim,
                       std::span<std::int32_t> places, std::int64_t* distinct, float* sums) {
  require_slots({nullptr, nullptr, places.size(), dim}, slots);
  std::size_t count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::int32_t& place = places[static_cast<std::size_t>(slots[i])];
    const float* row = rows + i * dim;
    if (place == 0) {
      distinct[count] = slots[i];
      std::copy_n(row, dim, sums + count * dim);
      place = static_cast<std::int32_t>(++count);
      continue;
    }
    float* sum = sums + static_cast<std::size_t>(place - 1) * dim;
    for (std::size_t j = 0; j < dim; ++j) sum[j] += row[j];
  }
  for (std::size_t i = 0; i < count; ++i) places[static_cast<std::size_t>(distinct[i])] = 0;
  return count;
}

}  // namespace gradring::kernels
