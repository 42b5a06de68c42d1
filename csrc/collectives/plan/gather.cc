// Gather algorithms: those who need the result get everybody's whole vector and fold it themselves.
// One step, for small messages; any order of additions, and 16-bit floats are rounded once.

#include <algorithm>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

class GatherPlanner {
 public:
  explicit GatherPlanner(const Request& request)
      : request_(request),
        n_(request.world_size),
        parts_(request),
        vector_(std::array{request.count}, item_bytes(request.dtype)),
        columns_(static_cast<Rank>((vector_.bytes() + kPieceBytes - 1) / kPieceBytes)) {}

  // `folds`: whether this rank wants the result; `sends_to`: whom it sends its vector.
  Plan make(bool folds, const std::vector<Rank>& sends_to) {
    if (folds) make_slots();
    for (Rank column = 0; column < columns_; ++column) {
      const Extent piece = vector_.piece(0, column, columns_);
      std::vector<std::uint32_t> before_folding;
      for (const Rank peer : sends_to) {
        before_folding.push_back(plan_.send(peer, input(piece.begin_bytes), piece.bytes));
      }
      if (folds) fold(piece, column, std::move(before_folding));
    }
    return std::move(plan_).finish(Algorithm::kGather);
  }

 private:
  struct Set {
    std::vector<Slice> slots;               // By rank.
    std::vector<std::uint32_t> last_users;  // The reduces that read them.
  };

  void make_slots() {
    sets_.resize(static_cast<std::size_t>(std::min(columns_, kColumnsInFlight)));
    for (Set& set : sets_) {
      for (Rank peer = 0; peer < n_; ++peer) {
        set.slots.push_back(
            peer == request_.rank ? Slice{} : plan_.scratch(vector_.largest_piece_bytes(columns_)));
      }
    }
  }

  // Waits for the sends too: they read the input that the result may replace.
  void fold(Extent piece, Rank column, std::vector<std::uint32_t> after) {
    Set& set = sets_[static_cast<std::size_t>(column % kColumnsInFlight)];
    for (Rank distance = 1; distance < n_; ++distance) {
      const Rank peer = wrap(request_.rank - distance, n_);
      after.push_back(
          plan_.recv(peer, set.slots[static_cast<std::size_t>(peer)], piece.bytes, set.last_users));
    }
    set.last_users.clear();
    if (request_.order != Order::kRing) {  // The same operands whoever owns the chunk.
      set.last_users.push_back(fold_part(piece, piece, 0, set, after));
      return;
    }
    for (Rank owner = 0; owner < n_; ++owner) {
      const Extent chunk = parts_.part(owner);
      const std::uint64_t from = std::max(piece.begin_bytes, chunk.begin_bytes);
      const std::uint64_t to = std::min(piece.end_bytes(), chunk.end_bytes());
      if (from >= to) continue;
      set.last_users.push_back(fold_part({from, to - from}, piece, owner, set, after));
    }
  }

  std::uint32_t fold_part(Extent part, Extent piece, Rank owner, const Set& set,
                          PlanBuilder::After after) {
    std::vector<Slice> sources;
    for (const Rank rank : operand_ranks(request_.order, n_, owner)) {
      Slice source = input(part.begin_bytes);
      if (rank != request_.rank) {
        source = set.slots[static_cast<std::size_t>(rank)];
        source.offset_bytes += part.begin_bytes - piece.begin_bytes;
      }
      sources.push_back(source);
    }
    return plan_.reduce(output(part.begin_bytes), sources, part.bytes, fold_of(request_.order),
                        true, after);
  }

  const Request& request_;
  const Rank n_;
  const Parts parts_;   // The chunks, which decide the order in a ring.
  const Parts vector_;  // One part: the whole.
  const Rank columns_;
  std::vector<Set> sets_;
  PlanBuilder plan_;
};

}  // namespace

Plan gather_all_reduce(const Request& request) {
  std::vector<Rank> everybody;
  for (Rank distance = 1; distance < request.world_size; ++distance) {
    everybody.push_back(wrap(request.rank + distance, request.world_size));
  }
  return GatherPlanner(request).make(true, everybody);
}

Plan gather_reduce(const Request& request) {
  const bool is_root = request.rank == request.root;
  return GatherPlanner(request).make(is_root,
                                     is_root ? std::vector<Rank>{} : std::vector{request.root});
}

}  // namespace gradring::collectives
