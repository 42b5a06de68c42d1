// How an operation on device memory is cut into rounds, each of which fits a slot of host memory:
// what is copied down into the slot, which collective runs there, what is copied back up. Pure
// functions. The cut keeps the order of additions: a reduced element has the same bits as if the
// whole operation had run at once (plan/plan.h: in a ring, an element's order depends on which
// rank's part it lies in, so every round takes a piece of every part).
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/plan/operation.h"

namespace gradring::collectives {

struct Piece {  // Elements.
  std::uint64_t device_at = 0;
  std::uint64_t slot_at = 0;
  std::uint64_t count = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

struct StagedRound {
  Request request;             // The collective: in place where it can be.
  std::uint64_t input_at = 0;  // Elements from the slot's begin.
  std::uint64_t output_at = 0;
  std::uint64_t slot_count = 0;  // Elements of the slot that are used.
  std::vector<Piece> down;       // From the operation's input.
  std::vector<Piece> up;         // To its output.
};

// `request` as Engine::complete makes it; `slot_count`: elements a slot holds, at least one for
// each rank. `segment_count` 0, or the elements of each step of an algorithm that goes through a
// vector step by step (a hierarchy): then a round is one step. The same number of rounds on every
// rank. An all_to_all is one round, however large.
std::vector<StagedRound> staged_rounds(const Request& request, std::uint64_t slot_count,
                                       std::uint64_t segment_count = 0);

// The collective of a round of `whole`, in its slot.
Operation part_of(const Operation& whole, const StagedRound& round, std::byte* slot);

}  // namespace gradring::collectives
