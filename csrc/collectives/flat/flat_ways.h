// FlatWays: how the bytes of a long operation get from one rank to another. Through the slots
// (flat_gather.h, flat_reduce.h), written into the caches or past them; or, of all_gathers and
// broadcasts, through so little of them that it stays in the caches, or right out of the other
// ranks' memory (flat_direct.h). Which one is faster depends on the processor, on the kernel, on
// the length, and on where a virtual machine's cores happen to lie, which changes while it runs:
// each of them is the fastest somewhere, and five times slower somewhere else. So each way has its
// turn of some operations in each kind and length; the one that was faster at its best goes on,
// turn after turn, until it takes longer than another one did, or until another one's time is so
// old that a turn of it costs little beside what has passed since. One rank's measurement decides
// for all: its word, which every rank hears in an operation, says how the next one goes (or, where
// a root may be ahead of that rank, one a few later: Flat::run_ahead). Pure: it is told how long
// things took. Belongs to one Flat, on its driving thread. Measured:
// docs/decisions/0021-ways-are-compared-in-use.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/ticks.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

enum class FlatWay : std::uint8_t {
  kSlots = 0,
  kSlotsPast = 1,  // Past the caches: no line is read out of another core's cache to be replaced.
  kRead = 2,
  kSlotsCached = 3,  // A little at a time, always in the same places (FlatMemory::kCachedBytes).
};

class FlatWays {
 public:
  // What is written until it is written into the same place again.
  struct Slots {
    std::size_t bytes;         // Of one rank.
    std::size_t cached_bytes;  // The same by kSlotsCached.
    std::size_t ranks;
  };

  // Operations of a turn, of which the fastest counts: so many once all lines are in the caches,
  // for which operations through the slots must have gone around all of them, or in a broadcast
  // around those of one root.
  static constexpr std::size_t kTurn = 4;
  // From here on an operation goes around them by itself.
  static constexpr std::size_t kLongBytes = std::size_t{16} << 20;
  static constexpr std::size_t kLongTurn = 2;
  // From here on the slots have the first turn, being faster than reading nearly always: the
  // kernel's copy leaves everything in the cache, which theirs does not, and a broadcast's root and
  // the others can copy at once.
  static constexpr std::size_t kSlotsFirstGatherBytes = std::size_t{32} << 20;
  static constexpr std::size_t kSlotsFirstBroadcastBytes = std::size_t{1} << 20;
  // Another way has another turn after so many times what its last one took; after twice as many
  // each time that this has shown nothing new, and then after the most.
  static constexpr Ticks kLeastPatience = 32;
  static constexpr Ticks kMostPatience = 256;
  // One that is faster by less than a part of so many is not worth a change.
  static constexpr Ticks kWorthChanging = 8;

  // A long one (kLongBytes), of which a turn of each way is many times what it is worth, begins
  // with what is known of one shorter by so many bits at most. Not a shorter one: there what
  // reading takes does not grow with the length, and a wrong guess is found out late.
  static constexpr std::size_t kDonorBits = 2;

  static constexpr std::size_t kWays = 4;

  // `shares_processors`: there are more ranks; the slots have the first turn at every length then.
  FlatWays(bool shares_processors, const Slots& slots)
      : shares_processors_(shares_processors), slots_(slots) {}

  // Before each operation.
  void begin(OpKind op, std::size_t bytes);
  // The next operation's way: what was heard. The same on every rank. `may_read`: this kind and
  // length may go by reading.
  FlatWay way(OpKind op, std::size_t bytes, bool may_read) const;
  // What this rank has measured so far says how the one after it should go.
  FlatWay wants(OpKind op, std::size_t bytes, bool may_read) const;

  // An operation is over, and this rank took so long for it.
  void note(OpKind op, std::size_t bytes, FlatWay way, Ticks took);
  // An operation is over, and the rank whose word counts wanted that.
  void hear(OpKind op, std::size_t bytes, FlatWay wanted);

 private:
  static constexpr std::size_t kKinds = 5;     // Of operations.
  static constexpr std::size_t kLengths = 48;  // By the number of bits.

  struct Times {
    // An operation, by its last turn. 0: not known, or so old that it is worth a try.
    Ticks figure = 0;
    Ticks turn = 0;   // What all of that turn took.
    Ticks since = 0;  // What other ways took since then.
    Ticks patience = kLeastPatience;
  };
  struct Length {
    std::array<Times, kWays> ways;
    bool has_begun = false;
    bool is_heard = false;  // Somebody's word.
    FlatWay wanted = FlatWay::kSlots;
    FlatWay kept = FlatWay::kSlots;  // The fastest at the end of the last turn.
    // The turn under way.
    FlatWay used = FlatWay::kSlots;
    std::size_t operations = 0;
    Ticks fastest = 0;
    Ticks slowest = 0;
    Ticks took = 0;
  };

  static std::size_t place(OpKind op, std::size_t bytes);  // In lengths_.
  // In the order of their first turns.
  struct Candidates {
    std::array<FlatWay, kWays> ways{};
    std::size_t count = 0;
  };
  Candidates candidates(OpKind op, std::size_t bytes, bool may_read) const;
  bool reads_first(OpKind op, std::size_t bytes) const;
  std::size_t turn_of(OpKind op, FlatWay way, std::size_t bytes) const;
  void inherit(OpKind op, std::size_t bytes, std::size_t bits);
  Ticks figure_of(OpKind op, std::size_t bytes, const Length& length) const;
  static void end_turn(Length& length, Ticks figure);

  const bool shares_processors_;
  const Slots slots_;
  std::array<Length, kKinds * kLengths> lengths_;
};

}  // namespace gradring::collectives
