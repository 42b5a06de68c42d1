#include "collectives/flat/flat_ways.h"

#include <algorithm>
#include <bit>

namespace gradring::collectives {

std::size_t FlatWays::place(OpKind op, std::size_t bytes) {
  const auto bits = static_cast<std::size_t>(std::bit_width(bytes));
  return std::min(bits, kLengths - 1) + (op == OpKind::kBroadcast ? kLengths : 0);
}

bool FlatWays::starts_direct(OpKind op, std::size_t bytes) const {
  return !slots_first_ &&
         bytes < (op == OpKind::kAllGather ? kSlotsFirstGatherBytes : kSlotsFirstBroadcastBytes);
}

std::size_t FlatWays::turn_of(bool is_direct, std::size_t bytes) const {
  if (bytes >= kLongBytes) return 1;
  return is_direct ? kTurn : slots_bytes_ / bytes + kTurn;
}

bool FlatWays::is_direct(OpKind op, std::size_t bytes) const {
  const Length& of = lengths_[place(op, bytes)];
  return of.is_heard ? of.wants_direct : starts_direct(op, bytes);
}

bool FlatWays::wants_direct(OpKind op, std::size_t bytes) const {
  const Length& of = lengths_[place(op, bytes)];
  if (of.direct.fastest == of.slots.fastest) return starts_direct(op, bytes);
  return of.direct.fastest < of.slots.fastest;
}

void FlatWays::note(OpKind op, std::size_t bytes, bool was_direct, Ticks took) {
  Length& of = lengths_[place(op, bytes)];
  Way& used = was_direct ? of.direct : of.slots;
  Way& other = was_direct ? of.slots : of.direct;
  if (of.operations == 0 || of.was_direct != was_direct) {
    of.was_direct = was_direct;
    of.operations = 0;
    of.fastest = took;
    of.took = 0;
  }
  of.fastest = std::min(of.fastest, took);
  of.took += took;
  if (++of.operations < turn_of(was_direct, bytes)) return;
  of.operations = 0;
  const bool was_a_try = used.fastest == 0 && other.fastest != 0;
  used = {.fastest = std::max(of.fastest, Ticks{1}), .turn = of.took, .since = 0};
  other.since += of.took;
  if (was_a_try)
    of.patience =
        used.fastest < other.fastest ? kLeastPatience : std::min(2 * of.patience, kMostPatience);
  if (other.since / of.patience >= other.turn) other.fastest = 0;
}

void FlatWays::hear(OpKind op, std::size_t bytes, bool wants_direct) {
  Length& of = lengths_[place(op, bytes)];
  of.is_heard = true;
  of.wants_direct = wants_direct;
}

}  // namespace gradring::collectives
