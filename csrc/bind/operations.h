// Operations as Python asks for them, checked. Used by the bindings of collectives on host memory
// and on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/communicator.h"

namespace gradring::bind {

using Counts = std::optional<std::vector<std::uint64_t>>;

// Without memory. Throws InvalidArgument for codes that mean nothing.
collectives::Operation operation_of(std::uint8_t op, std::uint8_t reduce_op, Rank root,
                                    std::uint64_t count, Counts counts, Counts recv_counts,
                                    std::uint8_t algorithm, bool is_rank_ordered);

struct Extent {
  std::uint64_t count = 0;
  DType dtype = DType::kUInt8;
};

// Throws InvalidArgument where the operation makes no sense, or not with arrays of these extents.
void check_operation(const collectives::Communicator& communicator,
                     const collectives::Operation& operation, const Extent& input,
                     const Extent& output);

}  // namespace gradring::bind
