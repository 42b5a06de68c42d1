#include "collectives/flat/flat_ways.h"

#include <algorithm>
#include <bit>

namespace gradring::collectives {

std::size_t FlatWays::place(OpKind op, std::size_t bytes) {
  const auto bits = static_cast<std::size_t>(std::bit_width(bytes));
  return std::min(bits, kLengths - 1) + (op == OpKind::kBroadcast ? kLengths : 0);
}

bool FlatWays::is_try(OpKind op, std::size_t bytes) const {
  return lengths_[place(op, bytes)].operations < kTries;
}

bool FlatWays::is_direct(OpKind op, std::size_t bytes) const {
  const Length& of = lengths_[place(op, bytes)];
  return of.operations < kTries ? of.operations < kDirectTries : of.is_direct;
}

bool FlatWays::prefers_direct(OpKind op, std::size_t bytes) const {
  const Length& of = lengths_[place(op, bytes)];
  return of.direct < of.slots;
}

void FlatWays::note(OpKind op, std::size_t bytes, bool was_direct, Took took) {
  Length& of = lengths_[place(op, bytes)];
  Took& best = was_direct ? of.direct : of.slots;
  best = std::min(best, took);
}

void FlatWays::count(OpKind op, std::size_t bytes, bool prefers_direct) {
  Length& of = lengths_[place(op, bytes)];
  of.is_direct = prefers_direct;
  if (++of.operations < kUntilNextTries) return;
  of.operations = 0;
  of.direct = of.slots = Took::max();
}

}  // namespace gradring::collectives
