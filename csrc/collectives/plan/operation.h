// Operation: one collective as a user asks for it, checked. Plain values.
#pragma once

#include <cstddef>

#include "base/call.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

struct Operation {
  Request request;  // rank, world_size and order are filled in by the communicator.
  Algorithm algorithm = Algorithm::kAuto;
  // deterministic="rank_order": x[0] + x[1] + ..., whatever the algorithm.
  bool is_rank_ordered = false;
  StepOf step_of = StepOf::kNothing;
  bool has_order = false;  // A part of a larger operation: request.order is that one's.
  // avg: where the divisor comes from if it is only known when the operation's turn has come, from
  // an earlier one of the same communicator. Whole numbers from 1 to 2^24 count; else the sum stays
  // a sum.
  const double* divisor_at = nullptr;
  const std::byte* input = nullptr;  // May equal output. Both outlive the operation.
  std::byte* output = nullptr;
};

// What all ranks must agree on.
Call call_of(const Operation& operation);
std::uint64_t hash_of(const std::vector<std::uint64_t>& counts);  // 0 for an empty list.

// True where ranks must make sure of each other before any payload moves (promise P3): a ring hears
// only from its neighbour.
bool agrees_first(const Request& request, Algorithm algorithm);

// Payload of the whole operation, for choosing an algorithm and an order.
std::uint64_t bytes_of(const Request& request);

// How many elements of input and output this rank's part of the operation touches.
struct Extents {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};
Extents extents_of(const Request& request, Rank rank, Rank world_size);

// Whether input and output share memory other than in place: the whole of both, or the one is
// exactly this rank's part of the other. Then one would be written before it is read.
bool overlaps_wrongly(const Operation& operation, Rank rank, Rank world_size);

}  // namespace gradring::collectives
