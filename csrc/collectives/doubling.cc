// Recursive doubling: log2(n) steps for small messages, partners at distance 1, 2, 4, ... .
// all_reduce combines whole vectors pairwise, the lower ranks' operand first: Order::kTree.
// all_gather is Bruck's (Bruck et al., 1997), which needs no power of two; the barrier is the same
// pattern with one byte (dissemination: Hensgen, Finkel and Manber, 1988).

#include <bit>
#include <vector>

#include "collectives/planners.h"

namespace gradring::collectives {

namespace {

// Columns of a long vector that are under way at once.
constexpr Rank kColumnsInFlight = 2;

class DoublingPlanner {
 public:
  explicit DoublingPlanner(const Request& request)
      : rank_(request.rank),
        n_(request.world_size),
        pairs_(static_cast<Rank>(std::bit_floor(static_cast<std::uint32_t>(n_)))),
        vector_(std::array{request.count}, item_bytes(request.dtype)),
        columns_(static_cast<Rank>((vector_.bytes() + kPieceBytes - 1) / kPieceBytes)) {}

  Plan all_reduce() {
    if (rank_ < pairs_) make_slots();
    for (Rank column = 0; column < columns_; ++column) {
      const Extent piece = vector_.piece(0, column, columns_);
      if (rank_ < pairs_) {
        combine(piece, column);
      } else {
        hand_over(piece);
      }
    }
    return std::move(plan_).finish(Algorithm::kDoubling);
  }

 private:
  // The operand that this rank holds so far.
  struct Held {
    Slice at;
    std::uint32_t ready = PlanBuilder::kNothing;
    Slot* slot = nullptr;  // Where it lives, unless it still is the input.
  };

  // One slot for each level and one for the rank beyond the power of two.
  void make_slots() {
    levels_ = static_cast<Rank>(std::bit_width(static_cast<std::uint32_t>(pairs_)));
    const Rank sets = std::min(columns_, kColumnsInFlight);
    const std::uint64_t largest = columns_ > 0 ? vector_.largest_piece_bytes(columns_) : 0;
    for (Rank i = 0; i < sets * levels_; ++i) slots_.push_back({.at = plan_.scratch(largest)});
  }

  // A rank beyond the largest power of two lends its vector to the rank that far below it and gets
  // the result back.
  void hand_over(Extent piece) {
    const Rank partner = rank_ - pairs_;
    const auto sent = plan_.send(partner, input(piece.begin_bytes), piece.bytes);
    plan_.recv(partner, output(piece.begin_bytes), piece.bytes, {{sent}});
  }

  void combine(Extent piece, Rank column) {
    Held held{.at = input(piece.begin_bytes)};
    if (rank_ + pairs_ < n_) {
      Slot& slot = slot_of(column, 0);
      const auto got = plan_.recv(rank_ + pairs_, slot.at, piece.bytes, slot.last_users);
      const std::array sources{held.at, slot.at};
      const auto folded =
          plan_.reduce(slot.at, sources, piece.bytes, kernels::Fold::kLeft, false, {{got}});
      held = {.at = slot.at, .ready = folded, .slot = &slot};
    }
    std::uint32_t input_sent = PlanBuilder::kNothing;
    Rank level = 1;
    for (Rank distance = 1; distance < pairs_; distance *= 2, ++level) {
      const Rank partner = rank_ ^ distance;
      const bool is_last = distance * 2 == pairs_;
      Slot& slot = slot_of(column, level);
      const auto sent = plan_.send(partner, held.at, piece.bytes, {{held.ready}});
      if (held.slot == nullptr) input_sent = sent;
      const auto got = plan_.recv(partner, slot.at, piece.bytes, slot.last_users);
      const bool is_lower = rank_ < partner;
      const std::array sources{is_lower ? held.at : slot.at, is_lower ? slot.at : held.at};
      const std::array after{held.ready, got, is_last ? input_sent : PlanBuilder::kNothing};
      const auto combined = plan_.reduce(is_last ? output(piece.begin_bytes) : slot.at, sources,
                                         piece.bytes, kernels::Fold::kLeft, is_last, after);
      if (held.slot != nullptr) held.slot->last_users = {sent, combined};
      slot.last_users = {combined, PlanBuilder::kNothing};
      held = {.at = slot.at, .ready = combined, .slot = &slot};
    }
    if (rank_ + pairs_ < n_) {
      plan_.send(rank_ + pairs_, output(piece.begin_bytes), piece.bytes, {{held.ready}});
    }
  }

  Slot& slot_of(Rank column, Rank level) {
    return slots_[static_cast<std::size_t>(column % kColumnsInFlight * levels_ + level)];
  }

  const Rank rank_;
  const Rank n_;
  const Rank pairs_;    // The largest power of two that is at most n.
  const Parts vector_;  // One part: the whole.
  const Rank columns_;
  Rank levels_ = 0;
  std::vector<Slot> slots_;
  PlanBuilder plan_;
};

}  // namespace

Plan doubling_all_reduce(const Request& request) {
  return DoublingPlanner(request).all_reduce();
}

// Scratch holds the parts of rank, rank+1, ... in this order, as far as they are known; every step
// doubles how many.
Plan doubling_all_gather(const Request& request) {
  const Rank n = request.world_size;
  const Rank rank = request.rank;
  const Parts parts(request);
  std::vector<std::uint64_t> begins{0};
  for (Rank i = 0; i < n; ++i)
    begins.push_back(begins.back() + parts.part(wrap(rank + i, n)).bytes);
  const auto begin_of = [&begins](Rank i) { return begins[static_cast<std::size_t>(i)]; };

  PlanBuilder plan;
  const Slice scratch = plan.scratch(parts.bytes());
  const auto at = [scratch](std::uint64_t offset) {
    return Slice{Place::kScratch, scratch.offset_bytes + offset};
  };
  std::vector<std::uint32_t> known{plan.copy(at(0), input(0), begin_of(1))};
  for (Rank distance = 1; distance < n; distance *= 2) {
    const Rank count = std::min(distance, n - distance);
    plan.send(wrap(rank - distance, n), at(0), begin_of(count), known);
    known.push_back(plan.recv(wrap(rank + distance, n), at(begin_of(distance)),
                              begin_of(distance + count) - begin_of(distance)));
  }
  const Rank wrapped = n - rank;  // From here on scratch holds the parts of ranks 0, 1, ...
  plan.copy(output(parts.part(rank).begin_bytes), at(0), begin_of(wrapped), known);
  plan.copy(output(0), at(begin_of(wrapped)), parts.bytes() - begin_of(wrapped), known);
  return std::move(plan).finish(Algorithm::kDoubling);
}

Plan doubling_barrier(const Request& request) {
  const Rank n = request.world_size;
  PlanBuilder plan;
  const Slice token = plan.scratch(1);
  std::vector<std::uint32_t> heard;
  for (Rank distance = 1; distance < n; distance *= 2) {
    plan.send(wrap(request.rank + distance, n), token, 1, heard);
    heard.push_back(plan.recv(wrap(request.rank - distance, n), plan.scratch(1), 1));
  }
  return std::move(plan).finish(Algorithm::kDoubling);
}

}  // namespace gradring::collectives
