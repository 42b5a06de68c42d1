// Ring algorithms (Patarasuk and Yuan, 2009): rank r sends only to r+1 and receives only from r-1.
// Chunk c starts at rank c+1, every rank it passes adds its own part behind what came, and it is
// finished at its owner c: Order::kRing. A long vector goes round in blocks of a few columns
// (parts.h): within a block all steps, then the next block, so that a handful of scratch slots is
// enough and the link is busy while a piece is reduced.

#include <algorithm>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

constexpr Rank kBlockColumns = 4;  // Where ways hold little.

class RingPlanner {
 public:
  explicit RingPlanner(const Request& request)
      : request_(request),
        n_(request.world_size),
        next_(wrap(request.rank + 1, n_)),
        previous_(wrap(request.rank - 1, n_)),
        parts_(request),
        columns_(pieces_of(parts_.largest_bytes())),
        width_(std::min(columns_, pieces_in_flight(request, kBlockColumns, 1))) {}

  Plan all_reduce() {
    make_slots();
    for (first_ = 0; first_ < columns_; first_ += width_) {
      reduce_steps();
      gather_steps();
    }
    return std::move(plan_).finish(Algorithm::kRing);
  }

  Plan reduce_scatter() {
    make_slots();
    for (first_ = 0; first_ < columns_; first_ += width_) reduce_steps();
    return std::move(plan_).finish(Algorithm::kRing);
  }

  Plan reduce() {
    make_slots();
    for (first_ = 0; first_ < columns_; first_ += width_) {
      reduce_steps();
      send_to_root();
    }
    return std::move(plan_).finish(Algorithm::kRing);
  }

  Plan all_gather() {
    const Extent mine = parts_.part(request_.rank);
    const bool waits = agrees_by_data(parts_.bytes());
    if (!waits) plan_.copy(output(mine.begin_bytes), input(0), mine.bytes);
    std::vector<std::uint32_t> arrived(static_cast<std::size_t>(width_));
    std::vector<std::uint32_t> all;
    for (first_ = 0; first_ < columns_; first_ += width_) {
      for (Rank step = 0; step < n_ - 1; ++step) {
        for (Rank column = first_; column < end(); ++column) {
          const Extent out = piece(request_.rank - step, column);
          std::uint32_t& last = arrived[static_cast<std::size_t>(column - first_)];
          if (step == 0) {
            plan_.send(next_, input(out.begin_bytes - mine.begin_bytes), out.bytes);
          } else {
            plan_.send(next_, output(out.begin_bytes), out.bytes, {{last}});
          }
          const Extent in = piece(request_.rank - 1 - step, column);
          last = plan_.recv(previous_, output(in.begin_bytes), in.bytes);
          if (waits) all.push_back(last);
        }
      }
    }
    if (waits) plan_.copy(output(mine.begin_bytes), input(0), mine.bytes, all);
    return std::move(plan_).finish(Algorithm::kRing);
  }

 private:
  // Two slots a column: while a reduced piece is sent from one, the next piece is received into the
  // other.
  void make_slots() {
    const std::uint64_t largest = parts_.largest_piece_bytes(columns_);
    const Rank sets = std::min<Rank>(n_ - 1, 2);
    for (Rank i = 0; i < sets * width_; ++i) slots_.push_back({.at = plan_.scratch(largest)});
    read_.resize(static_cast<std::size_t>(n_) * static_cast<std::size_t>(width_));
    finished_.resize(static_cast<std::size_t>(width_));
  }

  // n-1 steps, after which this rank holds its own chunk's finished pieces of this block.
  void reduce_steps() {
    for (Rank step = 0; step < n_ - 1; ++step) {
      for (Rank column = first_; column < end(); ++column) {
        send_partial(step, column);
        receive_and_add(step, column);
      }
    }
  }

  void send_partial(Rank step, Rank column) {
    const Rank chunk = wrap(request_.rank - 1 - step, n_);
    const Extent out = piece(chunk, column);
    if (step == 0) {
      read(chunk, column) = plan_.send(next_, input(out.begin_bytes), out.bytes);
      return;
    }
    if (out.bytes == 0) return;
    Slot& from = slot(step - 1, column);
    from.last_users[0] = plan_.send(next_, from.at, out.bytes, from.last_users);
  }

  void receive_and_add(Rank step, Rank column) {
    const Rank chunk = wrap(request_.rank - 2 - step, n_);
    const Extent in = piece(chunk, column);
    const bool is_final = step == n_ - 2;
    read(chunk, column) = PlanBuilder::kNothing;
    if (is_final) finished(column) = PlanBuilder::kNothing;
    if (in.bytes == 0) return;
    Slot& into = slot(step, column);
    const std::uint32_t got = plan_.recv(previous_, into.at, in.bytes, into.last_users);
    const std::array sources{into.at, input(in.begin_bytes)};
    const std::uint32_t reduced = plan_.reduce(is_final ? home(in, into) : into.at, sources,
                                               in.bytes, kernels::Fold::kLeft, is_final, {{got}});
    into.last_users[0] = reduced;
    read(chunk, column) = reduced;
    if (is_final) finished(column) = reduced;
  }

  // Where the finished piece of this rank's own chunk goes.
  Slice home(Extent piece, const Slot& slot) const {
    if (request_.op == OpKind::kReduceScatter) {
      return output(piece.begin_bytes - parts_.part(request_.rank).begin_bytes);
    }
    const bool is_kept = request_.op == OpKind::kAllReduce || request_.rank == request_.root;
    return is_kept ? output(piece.begin_bytes) : slot.at;
  }

  // n-1 steps that bring every rank everybody's finished pieces of this block, received in place.
  // The input's bytes there have been read by then: nobody could have finished the piece without
  // them.
  void gather_steps() {
    std::vector<std::uint32_t> ready = finished_;
    for (Rank step = 0; step < n_ - 1; ++step) {
      for (Rank column = first_; column < end(); ++column) {
        std::uint32_t& last = ready[static_cast<std::size_t>(column - first_)];
        const Extent out = piece(request_.rank - step, column);
        plan_.send(next_, output(out.begin_bytes), out.bytes, {{last}});
        const Rank chunk = wrap(request_.rank - 1 - step, n_);
        const Extent in = piece(chunk, column);
        last = plan_.recv(previous_, output(in.begin_bytes), in.bytes, {{read(chunk, column)}});
      }
    }
  }

  void send_to_root() {
    for (Rank column = first_; column < end(); ++column) {
      if (request_.rank != request_.root) {
        const Extent out = piece(request_.rank, column);
        if (out.bytes == 0) continue;
        Slot& from = slot(n_ - 2, column);
        from.last_users[0] = plan_.send(request_.root, from.at, out.bytes, from.last_users);
        continue;
      }
      for (Rank distance = 1; distance < n_; ++distance) {
        const Rank owner = wrap(request_.rank - distance, n_);
        const Extent in = piece(owner, column);
        plan_.recv(owner, output(in.begin_bytes), in.bytes, {{read(owner, column)}});
      }
    }
  }

  Rank end() const { return std::min(first_ + width_, columns_); }
  Extent piece(Rank chunk, Rank column) const {
    return parts_.piece(wrap(chunk, n_), column, columns_);
  }
  Slot& slot(Rank step, Rank column) {
    return slots_[static_cast<std::size_t>((step % 2) * width_ + column - first_)];
  }
  std::uint32_t& read(Rank chunk, Rank column) {
    return read_[static_cast<std::size_t>(chunk * width_ + column - first_)];
  }
  std::uint32_t& finished(Rank column) {
    return finished_[static_cast<std::size_t>(column - first_)];
  }

  const Request& request_;
  const Rank n_;
  const Rank next_;
  const Rank previous_;
  const Parts parts_;
  const Rank columns_;
  const Rank width_;  // Columns in a block.
  Rank first_ = 0;    // The current block's first column.
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> read_;  // What last read the input of (chunk, column of the block).
  std::vector<std::uint32_t>
      finished_;  // What wrote this rank's finished piece, by column of the block.
  PlanBuilder plan_;
};

}  // namespace

Plan ring_all_reduce(const Request& request) {
  return RingPlanner(request).all_reduce();
}
Plan ring_reduce_scatter(const Request& request) {
  return RingPlanner(request).reduce_scatter();
}
Plan ring_reduce(const Request& request) {
  return RingPlanner(request).reduce();
}
Plan ring_all_gather(const Request& request) {
  return RingPlanner(request).all_gather();
}

}  // namespace gradring::collectives
