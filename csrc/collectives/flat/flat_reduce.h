// FlatReduce: one long all_reduce, reduce_scatter or reduce through the slots of flat.h. Each rank
// owns one part of the vector. Piece by piece, a step each, every rank stages its pieces of the
// other ranks' parts, reduces its own, and takes the others' results; it does whichever is possible
// and waits only when nothing is. Lives as long as the operation, on the driving thread.
#pragma once

#include <cstdint>

#include "collectives/flat/flat_shape.h"
#include "collectives/flat/flat_side.h"

namespace gradring::collectives {

class FlatReduce {
 public:
  FlatReduce(FlatSide& side, FlatShape& shape, const Request& request, const std::byte* input,
             std::byte* output);

  // Touches this rank's slots only: allowed before the others' calls have been compared.
  void begin(transport::Idle& idle);
  void finish(transport::Idle& idle);

 private:
  void stage();
  void reduce();
  void take();
  // The first rank that keeps this one from ..., or -1.
  Rank blocks_stage() const;
  Rank blocks_reduce() const;
  Rank blocks_take() const;
  Rank first_behind(Counter Counters::* counter, std::uint64_t steps) const;
  void wait(transport::Idle& idle);

  FlatPart piece(Rank owner, std::uint64_t step) const;
  std::byte* result(Rank owner, std::uint64_t step) const;
  std::uint32_t counted(std::uint64_t step) const {
    return base_ + static_cast<std::uint32_t>(step) * slots_;
  }

  FlatSide& side_;
  FlatShape& shape_;
  const std::byte* const input_;
  std::byte* const output_;
  const bool scatters_;  // The result of this rank's part is all it wants, at the start of output.
  const bool takes_;     // It wants all parts.
  kernels::Copy* const copy_out_;  // In place, what it writes over was just read: it is cached.
  const std::uint32_t slots_;      // That a step takes at once.
  const std::uint32_t window_;     // Steps.
  const std::uint32_t base_;
  std::uint64_t steps_;
  std::size_t piece_bytes_;
  FlatMemory::Cut cut_;  // Results go where operands were: their lines are this core's already.
  std::uint64_t staged_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace gradring::collectives
