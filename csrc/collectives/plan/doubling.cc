// Recursive doubling: log2(n) steps for small messages, partners at distance 1, 2, 4, ... .
// all_reduce combines whole vectors pairwise, the lower ranks' operand first: Order::kTree.
// reduce_scatter does the same and keeps a part of it: more bytes than any other way, and the
// fewest messages. all_gather is Bruck's (Bruck et al., 1997), which needs no power of two; the
// barrier is the same pattern with one byte (dissemination: Hensgen, Finkel and Manber, 1988).

#include <bit>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

class DoublingPlanner {
 public:
  explicit DoublingPlanner(const Request& request)
      : rank_(request.rank),
        n_(request.world_size),
        spreads_(request.op == OpKind::kReduceScatter),
        pairs_(static_cast<Rank>(std::bit_floor(static_cast<std::uint32_t>(n_)))),
        parts_(request),
        vector_(std::array{parts_.bytes() / item_bytes(request.dtype)}, item_bytes(request.dtype)),
        columns_(static_cast<Rank>((vector_.bytes() + kPieceBytes - 1) / kPieceBytes)) {}

  Plan plan() {
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
    const Extent kept = kept_by(rank_, piece);
    plan_.recv(partner, home(kept), kept.bytes, {{sent}});
  }

  // What a rank gets of a finished piece.
  Extent kept_by(Rank rank, Extent piece) const {
    if (!spreads_) return piece;
    const Extent part = parts_.part(rank);
    const std::uint64_t begin = std::max(part.begin_bytes, piece.begin_bytes);
    const std::uint64_t end = std::min(part.end_bytes(), piece.end_bytes());
    return {begin, end > begin ? end - begin : 0};
  }
  // Where that lies in this rank's output.
  Slice home(Extent kept) const {
    return output(kept.begin_bytes - (spreads_ ? parts_.part(rank_).begin_bytes : 0));
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
      if (is_last) {
        const std::uint32_t done = finish(piece, sources, slot, {held.ready, got, input_sent});
        if (held.slot != nullptr) held.slot->last_users = {sent, done};
        return;
      }
      const auto combined = plan_.reduce(slot.at, sources, piece.bytes, kernels::Fold::kLeft, false,
                                         {{held.ready, got}});
      if (held.slot != nullptr) held.slot->last_users = {sent, combined};
      slot.last_users = {combined, PlanBuilder::kNothing};
      held = {.at = slot.at, .ready = combined, .slot = &slot};
    }
  }

  // Adds the last two operands, as far as anybody gets the sum from here; the last to read them.
  std::uint32_t finish(Extent piece, const std::array<Slice, 2>& sources, Slot& slot,
                       std::vector<std::uint32_t> after) {
    const auto reduce = [&](Slice into, Extent kept) {
      const std::uint64_t skip = kept.begin_bytes - piece.begin_bytes;
      const std::array from{later(sources[0], skip), later(sources[1], skip)};
      return plan_.reduce(into, from, kept.bytes, kernels::Fold::kLeft, true, after);
    };
    const Extent mine = kept_by(rank_, piece);
    const std::uint32_t own = reduce(home(mine), mine);
    after.push_back(own);
    std::uint32_t done = own;
    std::uint32_t sent = PlanBuilder::kNothing;
    if (rank_ + pairs_ < n_) {
      const Extent theirs = kept_by(rank_ + pairs_, piece);
      const Slice from =
          spreads_ ? later(slot.at, theirs.begin_bytes - piece.begin_bytes) : home(mine);
      const std::uint32_t ready = spreads_ ? reduce(from, theirs) : own;
      if (ready != PlanBuilder::kNothing) done = ready;
      sent = plan_.send(rank_ + pairs_, from, theirs.bytes, {{ready}});
    }
    const bool was_added = done != PlanBuilder::kNothing;
    slot.last_users = {was_added ? done : after[1], sent};  // Else nobody wants what was received.
    return done;
  }

  static Slice later(Slice slice, std::uint64_t bytes) {
    return {slice.place, slice.offset_bytes + bytes};
  }

  Slot& slot_of(Rank column, Rank level) {
    return slots_[static_cast<std::size_t>(column % kColumnsInFlight * levels_ + level)];
  }

  const Rank rank_;
  const Rank n_;
  const bool spreads_;  // reduce_scatter: everybody gets a part.
  const Rank pairs_;    // The largest power of two that is at most n.
  const Parts parts_;
  const Parts vector_;  // One part: the whole.
  const Rank columns_;
  Rank levels_ = 0;
  std::vector<Slot> slots_;
  PlanBuilder plan_;
};

}  // namespace

Plan doubling_all_reduce(const Request& request) {
  return DoublingPlanner(request).plan();
}
Plan doubling_reduce_scatter(const Request& request) {
  return DoublingPlanner(request).plan();
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
