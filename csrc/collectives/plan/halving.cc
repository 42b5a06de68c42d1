// Halving-doubling all_reduce (Rabenseifner, 2004; Thakur, Rabenseifner and Gropp, 2005): partners
// at distance 1, 2, 4, ... swap halves of what they still work on and add, then the same way back,
// passing finished halves on. Every element is added up in recursive doubling's order
// (Order::kTree) with the ring's bytes and 2 log2(n) steps. Ranks beyond the largest power of two
// lend their vector to the rank that far below and get the result back. The columns of a long
// vector follow one another a step apart.

#include <algorithm>
#include <bit>
#include <deque>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

class HalvingPlanner {
 public:
  explicit HalvingPlanner(const Request& request)
      : rank_(request.rank),
        n_(request.world_size),
        pairs_(static_cast<Rank>(std::bit_floor(static_cast<std::uint32_t>(n_)))),
        levels_(static_cast<Rank>(std::bit_width(static_cast<std::uint32_t>(pairs_))) - 1),
        item_(item_bytes(request.dtype)),
        vector_(std::array{request.count}, item_),
        column_bytes_(halved_column_bytes(request)),
        columns_(static_cast<Rank>((vector_.bytes() + column_bytes_ - 1) / column_bytes_)) {}

  Plan all_reduce() {
    if (rank_ >= pairs_) {
      for (Rank column = 0; column < columns_; ++column)
        hand_over(vector_.piece(0, column, columns_));
      return std::move(plan_).finish(Algorithm::kHalving);
    }
    make_slots();
    // Column c takes step s in round c + s: while one waits for its partner, others that are at
    // other levels talk to theirs. Round by round, so that partners list a stream alike.
    const Rank steps = 2 * levels_ + 1;
    for (Rank round = 0; round < columns_ + steps - 1; ++round) {
      const Rank first = std::max(round - steps + 1, 0);
      if (round < columns_) under_way_.emplace_back().piece = vector_.piece(0, round, columns_);
      for (Rank column = first; column <= std::min(round, columns_ - 1); ++column)
        take_step(under_way_[static_cast<std::size_t>(column - first)], column, round - column);
      if (round + 1 >= steps) under_way_.pop_front();
    }
    return std::move(plan_).finish(Algorithm::kHalving);
  }

 private:
  // What this rank has added up so far: a range of the vector, and where it lives.
  struct Held {
    Extent range;
    Place place = Place::kInput;
    std::uint64_t offset_bytes = 0;  // Of the range's first byte.
    std::uint32_t ready = PlanBuilder::kNothing;
    Slot* slot = nullptr;  // Unless it still is the input.

    Slice at(Extent part) const {
      return {place, offset_bytes + part.begin_bytes - range.begin_bytes};
    }
  };

  // One halving: which part was kept, which given away, and what last read that part of the input.
  struct Split {
    Rank partner = -1;
    Extent kept;
    Extent given;
    std::uint32_t given_read = PlanBuilder::kNothing;
  };

  struct Column {
    Extent piece;
    Held held;
    std::uint32_t lent_read = PlanBuilder::kNothing;
    std::uint32_t first_reduce = PlanBuilder::kNothing;
    std::vector<Split> splits;
    std::vector<std::uint32_t> known;  // What wrote the finished ranges.
  };

  void make_slots() {
    const Rank sets = std::min(columns_, kColumnsInFlight);
    for (Rank set = 0; set < sets; ++set) {
      std::uint64_t bytes = vector_.largest_piece_bytes(columns_);
      slots_.push_back({.at = plan_.scratch(rank_ + pairs_ < n_ ? bytes : 0)});
      for (Rank level = 0; level < levels_; ++level) {
        bytes = (bytes / item_ + 1) / 2 * item_;
        slots_.push_back({.at = plan_.scratch(bytes)});
      }
    }
  }

  void hand_over(Extent piece) {
    const auto sent = plan_.send(rank_ - pairs_, input(piece.begin_bytes), piece.bytes);
    plan_.recv(rank_ - pairs_, output(piece.begin_bytes), piece.bytes, {{sent}});
  }

  // Step 0 takes in what was lent, `levels_` steps halve, as many double back.
  void take_step(Column& column, Rank index, Rank step) {
    if (step > levels_) return double_back(column, step - levels_);
    if (step > 0) return halve(column, slot_of(index, step), step);
    column.held = {.range = column.piece, .offset_bytes = column.piece.begin_bytes};
    if (rank_ + pairs_ < n_) column.held = fold_lent(column.piece, index);
    column.lent_read = column.held.ready;
  }

  Held fold_lent(Extent piece, Rank column) {
    Slot& slot = slot_of(column, 0);
    const auto got = plan_.recv(rank_ + pairs_, slot.at, piece.bytes, slot.last_users);
    const std::array sources{input(piece.begin_bytes), slot.at};
    const auto folded =
        plan_.reduce(slot.at, sources, piece.bytes, kernels::Fold::kLeft, false, {{got}});
    slot.last_users = {folded, PlanBuilder::kNothing};
    return {piece, Place::kScratch, slot.at.offset_bytes, folded, &slot};
  }

  Split split_of(Extent range, Rank level) const {
    const Rank distance = 1 << (level - 1);
    const std::uint64_t low_bytes = range.bytes / item_ / 2 * item_;
    const Extent low{range.begin_bytes, low_bytes};
    const Extent high{range.begin_bytes + low_bytes, range.bytes - low_bytes};
    const bool keeps_low = (rank_ & distance) == 0;
    return {.partner = rank_ ^ distance,
            .kept = keeps_low ? low : high,
            .given = keeps_low ? high : low};
  }

  // Swaps halves with the partner and adds: the kept half is what is held then.
  void halve(Column& column, Slot& slot, Rank level) {
    Held& held = column.held;
    Split split = split_of(held.range, level);
    const auto sent =
        plan_.send(split.partner, held.at(split.given), split.given.bytes, {{held.ready}});
    const auto got = plan_.recv(split.partner, slot.at, split.kept.bytes, slot.last_users);
    const Slice mine = held.at(split.kept);
    const bool is_lower = rank_ < split.partner;
    const bool is_last = level == levels_;
    const std::array sources{is_lower ? mine : slot.at, is_lower ? slot.at : mine};
    const Slice into = is_last ? output(split.kept.begin_bytes) : slot.at;
    const auto added = plan_.reduce(into, sources, split.kept.bytes, kernels::Fold::kLeft, is_last,
                                    {{held.ready, got}});
    if (held.slot != nullptr) held.slot->last_users = {sent, added};
    if (added != PlanBuilder::kNothing) slot.last_users = {added, PlanBuilder::kNothing};
    held = {split.kept, Place::kScratch, slot.at.offset_bytes, added, &slot};
    if (level == 1) column.first_reduce = added;
    // Input is read by the fold of the lent vector if there is one, else by what the first level
    // does.
    split.given_read = column.lent_read != PlanBuilder::kNothing ? column.lent_read
                       : level == 1                              ? sent
                                                                 : column.first_reduce;
    column.splits.push_back(split);
    if (is_last) column.known = {added};
  }

  // Passes finished ranges back the way they were split, received in place, the last split first.
  void double_back(Column& column, Rank step) {
    const Split& split = column.splits[static_cast<std::size_t>(levels_ - step)];
    plan_.send(split.partner, output(split.kept.begin_bytes), split.kept.bytes, column.known);
    column.known.push_back(plan_.recv(split.partner, output(split.given.begin_bytes),
                                      split.given.bytes, {{split.given_read}}));
    if (step == levels_ && rank_ + pairs_ < n_) {
      plan_.send(rank_ + pairs_, output(column.piece.begin_bytes), column.piece.bytes,
                 column.known);
    }
  }

  Slot& slot_of(Rank column, Rank level) {
    return slots_[static_cast<std::size_t>(column % kColumnsInFlight * (levels_ + 1) + level)];
  }

  const Rank rank_;
  const Rank n_;
  const Rank pairs_;  // The largest power of two that is at most n.
  const Rank levels_;
  const std::uint64_t item_;
  const Parts vector_;  // One part: the whole.
  const std::uint64_t column_bytes_;
  const Rank columns_;
  std::vector<Slot> slots_;
  std::deque<Column> under_way_;
  PlanBuilder plan_;
};

}  // namespace

Plan halving_all_reduce(const Request& request) {
  return HalvingPlanner(request).all_reduce();
}

}  // namespace gradring::collectives
