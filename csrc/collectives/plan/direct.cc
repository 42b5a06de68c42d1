// Direct algorithms: every rank talks to every rank at once. A chunk's owner receives that piece of
// everybody's vector and folds all n of them in one go, so any order of additions can be had and
// 16-bit floats are rounded once. In an all_reduce who owns how much is free (Request::counts), so
// a slow link can be spared. Rank r addresses r+1, r+2, ...: at no time does everybody send to
// the same rank.

#include <algorithm>
#include <span>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

// Columns (parts.h) whose pieces are being collected at once. A column is passed on some columns
// after it was asked for: the links carry the columns between while it is folded. So many where
// ways hold little.
constexpr Rank kSets = 4;

class DirectPlanner {
 public:
  explicit DirectPlanner(const Request& request)
      : request_(request),
        n_(request.world_size),
        parts_(request),
        columns_(pieces_of(parts_.largest_bytes())),
        most_sets_(pieces_in_flight(request, kSets, 2 * (n_ - 1))),
        lag_(most_sets_ - 1),
        operands_(operand_ranks(request.order, n_, request.rank)) {
    const std::uint64_t largest = parts_.largest_piece_bytes(columns_);
    sets_.resize(static_cast<std::size_t>(std::min(columns_, most_sets_)));
    for (Set& set : sets_) {
      for (Rank peer = 0; peer < n_; ++peer) {
        set.slots.push_back(peer == request.rank ? Slice{} : plan_.scratch(largest));
      }
      set.sent.resize(static_cast<std::size_t>(n_));
    }
  }

  Plan all_reduce() {
    for (Rank column = 0; column < columns_ + lag_; ++column) {
      if (column < columns_) collect(column);
      if (column >= lag_) spread(column - lag_);
    }
    return std::move(plan_).finish(Algorithm::kDirect);
  }

  Plan reduce_scatter() {
    for (Rank column = 0; column < columns_; ++column) collect(column);
    return std::move(plan_).finish(Algorithm::kDirect);
  }

  Plan reduce() {
    for (Rank column = 0; column < columns_ + lag_; ++column) {
      if (column < columns_) collect(column);
      if (column >= lag_) send_to_root(column - lag_);
    }
    return std::move(plan_).finish(Algorithm::kDirect);
  }

 private:
  // What one column needs while it is under way.
  struct Set {
    std::vector<Slice> slots;         // By rank: where its piece of this rank's chunk arrives.
    std::vector<std::uint32_t> sent;  // By rank: the send of its chunk's piece, which reads input.
    std::vector<std::uint32_t> folded;      // These have finished this rank's own piece.
    std::vector<std::uint32_t> last_users;  // Of the slots.
  };

  // A range that is added up in one order.
  struct Run {
    Extent at;
    std::vector<Rank> operands;
  };

  // Sends everybody its piece, receives everybody's piece of this rank's chunk, and folds them.
  void collect(Rank column) {
    Set& set = set_of(column);
    for (Rank distance = 1; distance < n_; ++distance) {
      const Rank peer = wrap(request_.rank + distance, n_);
      const Extent out = parts_.piece(peer, column, columns_);
      set.sent[index(peer)] = plan_.send(peer, input(out.begin_bytes), out.bytes);
    }
    const Extent mine = parts_.piece(request_.rank, column, columns_);
    set.folded.clear();
    if (mine.bytes == 0) return;
    std::vector<std::uint32_t> arrived;
    for (Rank distance = 1; distance < n_; ++distance) {
      const Rank peer = wrap(request_.rank - distance, n_);
      arrived.push_back(plan_.recv(peer, set.slots[index(peer)], mine.bytes, set.last_users));
    }
    for (const Run& run : runs_of(mine)) {
      const std::uint64_t skip = run.at.begin_bytes - mine.begin_bytes;
      std::vector<Slice> sources;
      for (const Rank rank : run.operands) {
        sources.push_back(rank == request_.rank ? input(run.at.begin_bytes)
                                                : later(set.slots[index(rank)], skip));
      }
      set.folded.push_back(plan_.reduce(later(home(mine, set), skip), sources, run.at.bytes,
                                        fold_of(request_.order), true, arrived));
    }
    set.last_users = set.folded;
  }

  // Who owns what changes no bit of an all_reduce: a ring's order is that of the even cut's chunks,
  // of which an owner may have several, or parts.
  std::vector<Run> runs_of(Extent mine) const {
    const bool is_uneven = request_.op == OpKind::kAllReduce && !request_.counts.empty();
    if (!is_uneven || request_.order != Order::kRing) return {{mine, operands_}};
    std::vector<Run> runs;
    const std::uint64_t item = item_bytes(request_.dtype);
    for (Rank chunk = 0; chunk < n_; ++chunk) {
      const std::uint64_t begin =
          std::max(mine.begin_bytes, chunk_begin(request_.count, n_, chunk) * item);
      const std::uint64_t end =
          std::min(mine.end_bytes(), chunk_begin(request_.count, n_, chunk + 1) * item);
      if (begin < end)
        runs.push_back({{begin, end - begin}, operand_ranks(request_.order, n_, chunk)});
    }
    return runs;
  }

  static Slice later(Slice slice, std::uint64_t bytes) {
    return {slice.place, slice.offset_bytes + bytes};
  }

  Slice home(Extent mine, const Set& set) const {
    if (request_.op == OpKind::kReduceScatter) {
      return output(mine.begin_bytes - parts_.part(request_.rank).begin_bytes);
    }
    const bool is_kept = request_.op == OpKind::kAllReduce || request_.rank == request_.root;
    return is_kept ? output(mine.begin_bytes) : outgoing(set);
  }

  // A finished piece on its way to the root takes the place of one of its operands.
  Slice outgoing(const Set& set) const { return set.slots[index(wrap(request_.rank + 1, n_))]; }

  // Passes the finished piece to everybody and receives theirs in place.
  void spread(Rank column) {
    Set& set = set_of(column);
    const Extent mine = parts_.piece(request_.rank, column, columns_);
    for (Rank distance = 1; distance < n_; ++distance) {
      plan_.send(wrap(request_.rank + distance, n_), output(mine.begin_bytes), mine.bytes,
                 set.folded);
    }
    for (Rank distance = 1; distance < n_; ++distance) {
      receive_finished(wrap(request_.rank - distance, n_), column);
    }
  }

  void send_to_root(Rank column) {
    Set& set = set_of(column);
    if (request_.rank == request_.root) {
      for (Rank distance = 1; distance < n_; ++distance) {
        receive_finished(wrap(request_.rank - distance, n_), column);
      }
      return;
    }
    const Extent mine = parts_.piece(request_.rank, column, columns_);
    if (mine.bytes == 0) return;
    set.last_users = {plan_.send(request_.root, outgoing(set), mine.bytes, set.folded)};
  }

  void receive_finished(Rank owner, Rank column) {
    const Extent in = parts_.piece(owner, column, columns_);
    plan_.recv(owner, output(in.begin_bytes), in.bytes, {{set_of(column).sent[index(owner)]}});
  }

  Set& set_of(Rank column) { return sets_[static_cast<std::size_t>(column % most_sets_)]; }
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }

  const Request& request_;
  const Rank n_;
  const Parts parts_;
  const Rank columns_;
  const Rank most_sets_;
  const Rank lag_;  // Of the columns that are passed on.
  const std::vector<Rank> operands_;
  std::vector<Set> sets_;
  PlanBuilder plan_;
};

// Sends every rank its extent of the input and receives every rank's part in place. `out` is
// indexed by rank.
Plan exchange(const Request& request, std::span<const Extent> out, const Parts& in) {
  const Rank n = request.world_size;
  const Extent kept = out[static_cast<std::size_t>(request.rank)];
  const Slice kept_at = output(in.part(request.rank).begin_bytes);
  const bool waits = agrees_by_data(in.bytes());
  PlanBuilder plan;
  if (!waits) plan.copy(kept_at, input(kept.begin_bytes), kept.bytes);
  for (Rank distance = 1; distance < n; ++distance) {
    const Rank peer = wrap(request.rank + distance, n);
    const Extent sent = out[static_cast<std::size_t>(peer)];
    plan.send(peer, input(sent.begin_bytes), sent.bytes);
  }
  std::vector<std::uint32_t> arrived;
  for (Rank distance = 1; distance < n; ++distance) {
    const Rank peer = wrap(request.rank - distance, n);
    const Extent part = in.part(peer);
    arrived.push_back(plan.recv(peer, output(part.begin_bytes), part.bytes));
  }
  if (waits) plan.copy(kept_at, input(kept.begin_bytes), kept.bytes, arrived);
  return std::move(plan).finish(Algorithm::kDirect);
}

}  // namespace

Plan direct_all_reduce(const Request& request) {
  return DirectPlanner(request).all_reduce();
}
Plan direct_reduce_scatter(const Request& request) {
  return DirectPlanner(request).reduce_scatter();
}
Plan direct_reduce(const Request& request) {
  return DirectPlanner(request).reduce();
}

Plan direct_all_gather(const Request& request) {
  const Parts parts(request);
  const Extent mine{.bytes = parts.part(request.rank).bytes};
  return exchange(request, std::vector(static_cast<std::size_t>(parts.size()), mine), parts);
}

Plan direct_all_to_all(const Request& request) {
  const Parts out(request);
  std::vector<Extent> extents;
  for (Rank peer = 0; peer < out.size(); ++peer) extents.push_back(out.part(peer));
  std::vector<std::uint64_t> gets = request.recv_counts;
  if (request.counts.empty()) {
    const Rank n = request.world_size;
    gets.assign(static_cast<std::size_t>(n), chunk_begin(request.count, n, request.rank + 1) -
                                                 chunk_begin(request.count, n, request.rank));
  }
  return exchange(request, extents, Parts(gets, item_bytes(request.dtype)));
}

}  // namespace gradring::collectives
