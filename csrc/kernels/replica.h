// GEO's arithmetic on rows of a replica: what a worker offers to servers, and what it takes from
// them, in one pass over memory. Pure functions on pointers, callable from any thread; float32
// operations in the order written here, whatever the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradring::kernels {

// A replica's rows: the values that are trained, and what servers are believed to hold.
struct Replica {
  float* weights;  // (rows, dim)
  float* base;     // (rows, dim)
  std::size_t rows;
  std::size_t dim;
};

// Throws InvalidArgument unless every slot is below `rows`.
void require_slots(const Replica& replica, std::span<const std::int64_t> slots);

// For row i of `delta` (slots, dim) and slot s = slots[i]: delta = weights - base, divided by
// `workers` where that is more than 1; base += delta. Slots are distinct and below rows.
void offer_rows(const Replica& replica, std::span<const std::int64_t> slots, float workers,
                float* delta);

// For row i of `server` (slots, dim): moved = server - base; weights += moved, but become the
// server's very value where they were the base and moved is not 0; base = server. Slots are
// distinct and below rows. Returns the sum of the squares of moved.
double accept_rows(const Replica& replica, std::span<const std::int64_t> slots,
                   const float* server);

}  // namespace gradring::kernels
