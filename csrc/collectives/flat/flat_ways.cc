#include "collectives/flat/flat_ways.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace gradring::collectives {
namespace {

std::size_t kind_of(OpKind op) {
  switch (op) {
    case OpKind::kAllReduce: return 0;
    case OpKind::kReduceScatter: return 1;
    case OpKind::kReduce: return 2;
    case OpKind::kAllGather: return 3;
    default: GRADRING_ASSERT(op == OpKind::kBroadcast); return 4;
  }
}

// A change from a way that takes `present`.
constexpr bool is_worth(Ticks figure, Ticks present) {
  return figure + figure / FlatWays::kWorthChanging < present;
}

constexpr std::size_t index_of(FlatWay way) {
  return static_cast<std::size_t>(way);
}

}  // namespace

std::size_t FlatWays::place(OpKind op, std::size_t bytes) {
  const auto bits = static_cast<std::size_t>(std::bit_width(bytes));
  return kind_of(op) * kLengths + std::min(bits, kLengths - 1);
}

bool FlatWays::reads_first(OpKind op, std::size_t bytes) const {
  if (shares_processors_) return false;
  return bytes < (op == OpKind::kAllGather ? kSlotsFirstGatherBytes : kSlotsFirstBroadcastBytes);
}

std::size_t FlatWays::turn_of(OpKind op, FlatWay way, std::size_t bytes) const {
  if (bytes >= kLongBytes) return kLongTurn;
  if (way == FlatWay::kRead) return kTurn;
  const std::size_t each = way == FlatWay::kSlotsCached ? slots_.cached_bytes : slots_.bytes;
  return (op == OpKind::kBroadcast ? each : each * slots_.ranks) / bytes + kTurn;
}

void FlatWays::begin(OpKind op, std::size_t bytes) {
  Length& length = lengths_[place(op, bytes)];
  if (std::exchange(length.has_begun, true) || bytes < kLongBytes) return;
  for (std::size_t bits = 1; bits <= kDonorBits && bytes >> bits > 0; ++bits) {
    const Length& donor = lengths_[place(op, bytes >> bits)];
    if (donor.is_heard) return inherit(op, bytes, bits);
  }
}

// What was heard is the same on every rank, what was measured is this one's.
void FlatWays::inherit(OpKind op, std::size_t bytes, std::size_t bits) {
  Length& length = lengths_[place(op, bytes)];
  const Length& donor = lengths_[place(op, bytes >> bits)];
  length.is_heard = true;
  length.wanted = donor.wanted;
  length.kept = donor.kept;
  for (std::size_t way = 0; way < kWays; ++way) {
    const Times& known = donor.ways[way];
    Times& expected = length.ways[way];
    expected.figure = known.figure << bits;
    expected.turn = expected.figure * turn_of(op, static_cast<FlatWay>(way), bytes);
  }
}

FlatWay FlatWays::way(OpKind op, std::size_t bytes, bool may_read) const {
  const Length& length = lengths_[place(op, bytes)];
  if (length.is_heard) return length.wanted;
  return may_read && reads_first(op, bytes) ? FlatWay::kRead : FlatWay::kSlots;
}

FlatWays::Candidates FlatWays::candidates(OpKind op, std::size_t bytes, bool may_read) const {
  Candidates found;
  const auto add = [&](FlatWay way) { found.ways[found.count++] = way; };
  const bool reads_early = may_read && reads_first(op, bytes);
  if (reads_early) add(FlatWay::kRead);
  add(FlatWay::kSlots);
  if (!reduces(op)) add(FlatWay::kSlotsCached);
  add(FlatWay::kSlotsPast);
  if (may_read && !reads_early) add(FlatWay::kRead);
  return found;
}

FlatWay FlatWays::wants(OpKind op, std::size_t bytes, bool may_read) const {
  const Length& length = lengths_[place(op, bytes)];
  const auto times = [&](FlatWay way) -> const Times& { return length.ways[index_of(way)]; };
  const Candidates tried = candidates(op, bytes, may_read);
  FlatWay best = may_read || length.kept != FlatWay::kRead ? length.kept : FlatWay::kSlots;
  for (std::size_t nth = 0; nth < tried.count; ++nth) {
    const FlatWay way = tried.ways[nth];
    const Ticks figure = times(way).figure;
    if (figure == 0) return way;
    if (is_worth(figure, times(best).figure)) best = way;
  }
  return best;
}

void FlatWays::note(OpKind op, std::size_t bytes, FlatWay way, Ticks took) {
  Length& length = lengths_[place(op, bytes)];
  if (length.operations == 0 || length.used != way) {
    length.used = way;
    length.operations = 0;
    length.fastest = took;
    length.slowest = 0;
    length.took = 0;
  }
  length.fastest = std::min(length.fastest, took);
  length.slowest = std::max(length.slowest, took);
  length.took += took;
  if (++length.operations >= turn_of(op, way, bytes))
    end_turn(length, figure_of(op, bytes, length));
}

// Of the turn under way. Where a root is ahead of ranks that share processors with it, some
// operations find everything there and the next ones nothing: only all of them say how long one
// takes, but for the slowest, which may be a stranger's.
Ticks FlatWays::figure_of(OpKind op, std::size_t bytes, const Length& length) const {
  const bool may_be_ahead = shares_processors_ && op == OpKind::kBroadcast && bytes < kLongBytes;
  if (!may_be_ahead || length.operations < 2) return length.fastest;
  return (length.took - length.slowest) / (length.operations - 1);
}

void FlatWays::end_turn(Length& length, Ticks figure) {
  Times& used = length.ways[index_of(length.used)];
  const bool was_a_try = used.figure == 0;
  used.figure = std::max(figure, Ticks{1});
  used.turn = length.took;
  used.since = 0;
  length.operations = 0;
  bool is_fastest = true;
  for (Times& other : length.ways) {
    if (&other == &used || other.figure == 0) continue;
    is_fastest = is_fastest && used.figure < other.figure;
    other.since += length.took;
    if (other.since / other.patience >= other.turn) other.figure = 0;
  }
  const Ticks present = length.ways[index_of(length.kept)].figure;
  if (present == 0 || is_worth(used.figure, present)) length.kept = length.used;
  if (was_a_try)
    used.patience = is_fastest ? kLeastPatience : std::min(2 * used.patience, kMostPatience);
}

void FlatWays::hear(OpKind op, std::size_t bytes, FlatWay wanted) {
  Length& length = lengths_[place(op, bytes)];
  length.is_heard = true;
  length.wanted = wanted;
}

}  // namespace gradring::collectives
