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

// Adds 1 to the touches (one of each row) of every slot that is there, however often it is. Throws
// InvalidArgument, before it writes, if one is beyond them.
void mark_rows(std::span<const std::int64_t> slots, std::span<std::int32_t> touches);

// Writes to `found`, which has room for all of them, those of the slots whose weights differ from
// the base, in their order, but for rows whose base is not finite. Returns how many there are.
// Slots are below rows.
std::size_t find_progress(const Replica& replica, std::span<const std::int64_t> slots,
                          std::int64_t* found);

// For row i of `delta` (slots, dim) and slot s = slots[i]: delta = weights - base, divided by
// `workers` where that is more than 1; base += delta. Slots are distinct and below rows.
void offer_rows(const Replica& replica, std::span<const std::int64_t> slots, float workers,
                float* delta);

// For row i of `server` (slots, dim): moved = server - base; weights += moved, but become the
// server's very value where they were the base and moved is not 0; base = server. Slots are
// distinct and below rows. Returns the sum of the squares of moved.
double accept_rows(const Replica& replica, std::span<const std::int64_t> slots,
                   const float* server);

// A map from ids to slots: open addressing with linear probing, -1 where free. At least one place
// is free, and the id of every slot in there is in `ids`, by slot.
struct IdTable {
  std::span<const std::int64_t> slots;  // A power of two of them.
  std::span<const std::uint64_t> ids;
};

// found[i] = the slot of ids[i], -1 if it has none. Throws InvalidArgument for a table that is
// none.
void find_ids(const IdTable& table, std::span<const std::uint64_t> ids, std::int64_t* found);

// Puts slots first, first + 1, ... up to `end` into such a map, `slots` being its places: their ids
// are distinct and have none yet. Throws InvalidArgument, before it writes, for a map that is none,
// or in which no place would stay free with `end` slots.
void place_ids(std::span<std::int64_t> slots, std::span<const std::uint64_t> ids, std::size_t first,
               std::size_t end);

// Adds up the rows (slots, dim) of equal slots, in the order given: one row of `sums` for each
// entry of `distinct`, which is in the order of first appearance; returns how many there are.
// `places` has a 0 for every row of the replica, and has it again afterwards. Throws
// InvalidArgument, before it writes, if a slot is beyond them.
std::size_t merge_rows(std::span<const std::int64_t> slots, const float* rows, std::size_t dim,
                       std::span<std::int32_t> places, std::int64_t* distinct, float* sums);

}  // namespace gradring::kernels
