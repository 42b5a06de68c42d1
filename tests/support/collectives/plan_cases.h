// A collective as the plan tests state it: one Request for each rank, the memory the ranks pass in,
// and the answer that the documented order of additions gives (worked out slowly, without the code
// under test).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"
#include "support/kernels_reference.h"

namespace gradring::testing {

struct PlanCase {
  OpKind op = OpKind::kAllReduce;
  collectives::Algorithm algorithm = collectives::Algorithm::kRing;
  Rank world_size = 2;
  std::uint64_t count = 0;  // As in Request.
  collectives::Order order = collectives::Order::kRing;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;
  bool has_uneven_counts =
      false;  // reduce_scatter, all_gather, all_to_all: parts of 0, 1, 2, ... times `count` / n.
  bool is_in_place = false;
  std::vector<std::uint64_t> owned = {};  // all_reduce: Request::counts, which change no bit.

  std::string text() const;
  std::vector<collectives::Request> requests() const;
};

// What one rank passes in: input and output are ranges of `bytes`, which overlap when the call is
// in place.
struct Memory {
  reference::Buffer bytes;
  std::size_t input_at = 0;
  std::size_t input_bytes = 0;
  std::size_t output_at = 0;
  std::size_t output_bytes = 0;

  reference::Buffer input() const;
  reference::Buffer output() const;
  bool input_is(const reference::Buffer& expected) const;
  bool output_is(const reference::Buffer& expected) const;
};

// Where every rank's input and output lie; no bytes yet.
std::vector<Memory> memory_of(const PlanCase& c);
// The same with seeded values that show every change of order: magnitudes from 2^-12 to 2^12 for
// floats, all bits for integers.
std::vector<Memory> random_memory(const PlanCase& c, std::uint64_t seed);

// Every rank's output, from everybody's input. Ranks without an output have an empty one.
std::vector<reference::Buffer> expected_outputs(const PlanCase& c,
                                                const std::vector<Memory>& memory);

// The ranks whose values are part of `rank`'s result.
std::vector<bool> contributors(const PlanCase& c, Rank rank);

// Bytes of the whole operation, which the rule about agreeing by data refers to.
std::uint64_t operation_bytes(const PlanCase& c, Rank rank);

}  // namespace gradring::testing
