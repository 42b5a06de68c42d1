// FlatWays: whether a long all_gather or broadcast goes through the slots or right out of the other
// ranks' memory (flat_gather.h, flat_direct.h). Which one is faster depends on the processor, on
// the kernel, on the length, and on where a virtual machine's cores happen to lie, which changes
// while it runs: on some machines the kernel's copy takes half the time of two, on others twice as
// long. So each way has its turn of some operations in each kind and length; the one that was
// faster at its best goes on, turn after turn, until it takes longer than the other one did, or
// until the other one's time is so old that a turn of it costs little beside what has passed since.
// One rank's measurement decides for all: its word, which every rank hears in an operation, says
// how the next one goes. Pure: it is told how long things took. Belongs to one Flat, on its driving
// thread.
#pragma once

#include <array>
#include <cstddef>

#include "base/ticks.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

class FlatWays {
 public:
  // Operations of a turn, of which the fastest counts: so many once all lines are in the caches,
  // for which operations through the slots must have gone around all of them.
  static constexpr std::size_t kTurn = 4;
  // One operation alone is a turn, from here on.
  static constexpr std::size_t kLongBytes = std::size_t{16} << 20;
  // From here on the slots have the first turn, being the faster way nearly always: the kernel's
  // copy leaves everything in the cache, which theirs does not, and a broadcast's root and the
  // others can copy at once.
  static constexpr std::size_t kSlotsFirstGatherBytes = std::size_t{32} << 20;
  static constexpr std::size_t kSlotsFirstBroadcastBytes = std::size_t{1} << 20;
  // The other way has another turn after so many times what its last one took; after twice as many
  // each time that this has shown nothing new, and then after the most.
  static constexpr Ticks kLeastPatience = 32;
  static constexpr Ticks kMostPatience = 256;

  // `slots_first`: in every length. `slots_bytes`: what all ranks write until they write into the
  // same place again.
  FlatWays(bool slots_first, std::size_t slots_bytes)
      : slots_first_(slots_first), slots_bytes_(slots_bytes) {}

  // The next operation's way: what was heard. The same on every rank.
  bool is_direct(OpKind op, std::size_t bytes) const;
  // What this rank has measured so far says how the one after it should go.
  bool wants_direct(OpKind op, std::size_t bytes) const;

  // An operation is over, and this rank took so long for it.
  void note(OpKind op, std::size_t bytes, bool was_direct, Ticks took);
  // An operation is over, and the rank whose word counts wanted that.
  void hear(OpKind op, std::size_t bytes, bool wants_direct);

 private:
  struct Way {
    Ticks fastest = 0;  // In its last turn. 0: not known, or so old that it is worth a try.
    Ticks turn = 0;     // What all of that turn took.
    Ticks since = 0;    // What the other way took since then.
  };
  struct Length {
    Way direct;
    Way slots;
    bool is_heard = false;  // Somebody's word.
    bool wants_direct = false;
    Ticks patience = kLeastPatience;
    // The turn under way.
    bool was_direct = false;
    std::size_t operations = 0;
    Ticks fastest = 0;
    Ticks took = 0;
  };
  static constexpr std::size_t kLengths = 64;  // By the number of bits.

  static std::size_t place(OpKind op, std::size_t bytes);  // In lengths_.
  bool starts_direct(OpKind op, std::size_t bytes) const;
  std::size_t turn_of(bool is_direct, std::size_t bytes) const;

  const bool slots_first_;
  const std::size_t slots_bytes_;
  std::array<Length, 2 * kLengths> lengths_;  // Of all_gathers, and of broadcasts.
};

}  // namespace gradring::collectives
