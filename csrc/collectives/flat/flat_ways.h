// FlatWays: whether a long all_gather or broadcast goes through the slots or right out of the other
// ranks' memory (flat_gather.h, flat_direct.h). Which one is faster depends on the processor, on
// the kernel, and on the length: on some machines the kernel's copy takes half the time of two, on
// others twice as long. So the first operations of each kind and length try both in turn, and from
// then on one rank's measurement decides for all, until it is time to try again. Every rank counts
// the same operations and hears the same word, so that all go the same way. Pure: it is told how
// long things took. Belongs to one Flat, on its driving thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "collectives/flat/flat_memory.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

class FlatWays {
 public:
  using Took = std::chrono::nanoseconds;

  // Of each way, of which the fastest counts. Through the slots more: the first time around them
  // their lines are not yet in the caches.
  static constexpr std::uint32_t kDirectTries = 4;
  static constexpr std::uint32_t kTries = kDirectTries + FlatMemory::kSlots + 4;  // Together.
  static constexpr std::uint32_t kUntilNextTries = 1024;                          // Operations.

  // The next operation's way. The same on every rank.
  bool is_direct(OpKind op, std::size_t bytes) const;
  // Whether it is one to measure.
  bool is_try(OpKind op, std::size_t bytes) const;
  // What this rank has measured so far.
  bool prefers_direct(OpKind op, std::size_t bytes) const;

  // An operation is over that was one to measure, and this rank took so long for it.
  void note(OpKind op, std::size_t bytes, bool was_direct, Took took);
  // An operation is over, and the rank whose word counts preferred that.
  void count(OpKind op, std::size_t bytes, bool prefers_direct);

 private:
  struct Length {
    std::uint32_t operations = 0;  // Since the tries began.
    Took direct = Took::max();
    Took slots = Took::max();
    bool is_direct = true;  // What was decided.
  };
  static constexpr std::size_t kLengths = 64;  // By the number of bits.

  static std::size_t place(OpKind op, std::size_t bytes);  // In lengths_.

  std::array<Length, 2 * kLengths> lengths_;  // Of all_gathers, and of broadcasts.
};

}  // namespace gradring::collectives
