// FlatGather: one long all_gather or broadcast through the slots of flat.h: who has something
// stages it piece by piece, everybody else copies it out, a few steps behind. Lives as long as the
// operation, on the driving thread.
#pragma once

#include <cstdint>

#include "collectives/flat/flat_shape.h"
#include "collectives/flat/flat_side.h"

namespace gradring::collectives {

class FlatGather {
 public:
  FlatGather(FlatSide& side, const FlatShape& shape, const Request& request, const std::byte* input,
             std::byte* output);

  // Touches this rank's slots only: allowed before the others' calls have been compared.
  void begin(transport::Idle& idle);
  void finish(transport::Idle& idle);

 private:
  kernels::Copy* copy_out() const;
  std::size_t most_bytes(std::size_t largest) const;
  std::byte* slot(Rank from, std::uint64_t step) const;
  void stage();
  void take();
  void wait(Rank blocks_taking, transport::Idle& idle);
  Rank blocks_stage() const;
  Rank blocks_take() const;
  // What `from` contributes in one step, in bytes of the output.
  FlatPart piece(Rank from, std::uint64_t step) const;
  bool has_part(Rank from) const { return root_ < 0 || from == root_; }
  std::uint32_t counted(std::uint64_t step) const {
    return base_ + static_cast<std::uint32_t>(step) * slots_;
  }

  FlatSide& side_;
  const FlatShape& shape_;
  const std::byte* const input_;
  std::byte* const output_;
  const Rank root_;  // -1: all ranks have a part.
  kernels::Copy* const copy_own_;
  kernels::Copy* const copy_out_;  // Of the slots. Who gathers is in step with the others.
  const std::uint32_t slots_;      // That a step takes at once.
  const std::uint32_t base_;
  std::uint64_t steps_;
  std::size_t piece_bytes_;
  std::uint64_t staged_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace gradring::collectives
