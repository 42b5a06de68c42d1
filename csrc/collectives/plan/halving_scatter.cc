// Recursive halving (Thakur, Rabenseifner and Gropp, 2005): reduce_scatter with the ring's bytes in
// log2(n) steps, added up in recursive doubling's order (Order::kTree), and reduce, which then
// sends all parts to the root. Partners at distance 1, 2, 4, ... swap the parts that the other
// one's side of the ranks will own, and add. Parts are listed by their owners' bits reversed: so at
// every level both sides' are in one piece. Ranks beyond the largest power of two lend their vector
// to the rank that far below, which owns their part as well. The columns of a long vector follow
// one another a step apart.

#include <algorithm>
#include <bit>
#include <deque>
#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

// With many ranks a column is as long as is worth a message each.
constexpr std::uint64_t kColumnBytesPerRank = 64 * 1024;
// Pieces up to this long on average go in one message: copying them together costs less than one
// message each.
constexpr std::uint64_t kGatheredBytes = 8 * 1024;

// A place in scratch that columns use in turn: a receive into it waits for its last users.
struct Buffer {
  Slice at;
  std::vector<std::uint32_t> last_users;

  // Those before need not be waited for any more: these came after them.
  void be_used_by(const std::vector<std::uint32_t>& users) {
    std::vector<std::uint32_t> any;
    for (const std::uint32_t user : users)
      if (user != PlanBuilder::kNothing) any.push_back(user);
    if (!any.empty()) last_users = std::move(any);
  }
};

struct Range {  // Of positions in the list of parts.
  std::size_t begin = 0;
  std::size_t end = 0;
};

// One piece of every part, in the list's order.
struct Column {
  std::vector<Extent> pieces;
  std::vector<std::uint64_t> begins;  // Where each begins if they are packed, and the end.
  std::vector<std::uint32_t> read;    // What reads each in the input.
  std::vector<std::uint32_t> ready;   // What wrote each where it is held now.
  Range held;                         // What this rank has added up so far,
  Buffer* buffer = nullptr;           // packed there; null: it still is the input.

  std::uint64_t bytes(Range range) const { return begins[range.end] - begins[range.begin]; }
  // Of a buffer that holds pieces from `first` on.
  Slice packed(const Buffer& in, std::size_t first, std::size_t position) const {
    return {Place::kScratch, in.at.offset_bytes + begins[position] - begins[first]};
  }
  Slice mine(std::size_t position) const {
    return buffer == nullptr ? input(pieces[position].begin_bytes)
                             : packed(*buffer, held.begin, position);
  }
  std::vector<std::uint32_t> written(Range range) const {
    return {ready.begin() + static_cast<std::ptrdiff_t>(range.begin),
            ready.begin() + static_cast<std::ptrdiff_t>(range.end)};
  }
};

class HalvingScatterPlanner {
 public:
  explicit HalvingScatterPlanner(const Request& request)
      : rank_(request.rank),
        n_(request.world_size),
        root_(request.op == OpKind::kReduce ? request.root : -1),
        pairs_(static_cast<Rank>(std::bit_floor(static_cast<std::uint32_t>(n_)))),
        levels_(static_cast<Rank>(std::bit_width(static_cast<std::uint32_t>(pairs_))) - 1),
        parts_(request),
        columns_(columns_of(request, parts_)) {
    for (Rank part = 0; part < n_; ++part) list_.push_back(part);
    std::stable_sort(list_.begin(), list_.end(),
                     [this](Rank a, Rank b) { return reversed(owner(a)) < reversed(owner(b)); });
  }

  Plan plan() {
    make_buffers();
    if (rank_ >= pairs_) {
      for (Rank index = 0; index < columns_; ++index) hand_over(column_of(index), index);
      return std::move(plan_).finish(Algorithm::kHalving);
    }
    // As in halving.cc: column c takes step s in round c + s.
    const Rank steps = levels_ + 2;
    for (Rank round = 0; round < columns_ + steps - 1; ++round) {
      const Rank first = std::max(round - steps + 1, 0);
      if (round < columns_) under_way_.push_back(column_of(round));
      for (Rank index = first; index <= std::min(round, columns_ - 1); ++index)
        take_step(under_way_[static_cast<std::size_t>(index - first)], index, round - index);
      if (round + 1 >= steps) under_way_.pop_front();
    }
    return std::move(plan_).finish(Algorithm::kHalving);
  }

 private:
  static Rank columns_of(const Request& request, const Parts& parts) {
    const std::uint64_t most =
        std::max(halved_column_bytes(request),
                 kColumnBytesPerRank * static_cast<std::uint64_t>(parts.size()));
    return static_cast<Rank>((parts.bytes() + most - 1) / most);
  }

  Rank owner(Rank part) const { return part % pairs_; }

  std::uint32_t reversed(Rank owner) const {
    std::uint32_t bits = 0;
    for (Rank level = 0; level < levels_; ++level)
      bits = bits << 1U | (static_cast<std::uint32_t>(owner) >> static_cast<unsigned>(level) & 1U);
    return bits;
  }

  Column column_of(Rank index) const {
    Column column;
    column.begins.push_back(0);
    for (const Rank part : list_) {
      column.pieces.push_back(parts_.piece(part, index, columns_));
      column.begins.push_back(column.begins.back() + column.pieces.back().bytes);
    }
    column.held.end = list_.size();
    column.read.assign(list_.size(), PlanBuilder::kNothing);
    column.ready = column.read;
    return column;
  }

  // What is kept of a range where partners are this far apart; the rest is given away.
  Range kept_of(Range range, Rank distance) const {
    const auto middle = std::find_if(list_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                     list_.begin() + static_cast<std::ptrdiff_t>(range.end),
                                     [&](Rank part) { return (owner(part) & distance) != 0; });
    const auto at = static_cast<std::size_t>(middle - list_.begin());
    return (rank_ & distance) == 0 ? Range{range.begin, at} : Range{at, range.end};
  }

  // For each column in flight one for pieces that go together, one for what was lent, and one for
  // each level.
  void make_buffers() {
    const bool lends = rank_ >= pairs_;
    for (Rank set = 0; set < std::min(columns_, kColumnsInFlight); ++set) {
      const Range all{0, list_.size()};
      const std::uint64_t most = most_bytes(all);
      gathers_ = most <= kGatheredBytes * list_.size();
      gathered_.push_back(buffer(gathers_ ? most : 0));
      if (lends) continue;
      buffers_.push_back(buffer(is_lent_to() ? most : 0));
      Range range = all;
      for (Rank level = 1; level <= levels_; ++level) {
        range = kept_of(range, 1 << (level - 1));
        buffers_.push_back(buffer(most_bytes(range)));
      }
    }
  }

  Buffer buffer(std::uint64_t bytes) { return {.at = plan_.scratch(bytes), .last_users = {}}; }

  bool is_lent_to() const { return rank_ + pairs_ < n_; }

  std::uint64_t most_bytes(Range range) const {  // Of any column.
    std::uint64_t most = 0;
    for (Rank index = 0; index < columns_; ++index) {
      std::uint64_t bytes = 0;
      for (std::size_t position = range.begin; position < range.end; ++position)
        bytes += parts_.piece(list_[position], index, columns_).bytes;
      most = std::max(most, bytes);
    }
    return most;
  }

  // Step 0 takes in what was lent, `levels_` steps halve, the last sends sums to whom they belong.
  void take_step(Column& column, Rank index, Rank step) {
    if (step > levels_) return deliver(column);
    if (step > 0) return halve(column, index, step);
    if (is_lent_to()) fold_lent(column, buffer_of(index, 0));
  }

  Buffer& buffer_of(Rank index, Rank level) {
    return buffers_[static_cast<std::size_t>(index % kColumnsInFlight * (levels_ + 1) + level)];
  }

  void hand_over(Column column, Rank index) {
    give(column, index, rank_ - pairs_, column.held);
    if (root_ == rank_) return collect(column);
    if (root_ >= 0) return;
    const auto own =
        static_cast<std::size_t>(std::find(list_.begin(), list_.end(), rank_) - list_.begin());
    plan_.recv(rank_ - pairs_, home(column, own), column.pieces[own].bytes, {{column.read[own]}});
  }

  void fold_lent(Column& column, Buffer& buffer) {
    const std::uint32_t got =
        plan_.recv(rank_ + pairs_, buffer.at, column.bytes(column.held), buffer.last_users);
    for (std::size_t at = 0; at < list_.size(); ++at) {
      const Slice lent = column.packed(buffer, 0, at);
      const std::array sources{column.mine(at), lent};
      column.read[at] = plan_.reduce(lent, sources, column.pieces[at].bytes, kernels::Fold::kLeft,
                                     false, {{got}});
    }
    column.ready = column.read;
    column.buffer = &buffer;
  }

  // Swaps parts with the partner and adds: the kept ones are what is held then.
  void halve(Column& column, Rank index, Rank level) {
    Buffer& buffer = buffer_of(index, level);
    const Rank distance = 1 << (level - 1);
    const Rank partner = rank_ ^ distance;
    const Range held = column.held;
    const Range kept = kept_of(held, distance);
    const Range given =
        kept.begin == held.begin ? Range{kept.end, held.end} : Range{held.begin, kept.begin};
    std::vector<std::uint32_t> users{give(column, index, partner, given)};
    const std::uint32_t got = plan_.recv(partner, buffer.at, column.bytes(kept), buffer.last_users);
    // Pieces go by themselves where they come from all over the input or go to different places.
    const bool is_last = level == levels_;
    const bool are_apart = column.buffer == nullptr || is_last;
    for (std::size_t at = kept.begin; at < kept.end; at = are_apart ? at + 1 : kept.end) {
      const Range range{at, are_apart ? at + 1 : kept.end};
      const Slice theirs = column.packed(buffer, kept.begin, at);
      const std::array sources{rank_ < partner ? column.mine(at) : theirs,
                               rank_ < partner ? theirs : column.mine(at)};
      std::vector<std::uint32_t> after = column.written(range);
      after.push_back(got);
      const std::uint32_t added =
          plan_.reduce(is_last && is_mine(at) ? home(column, at) : theirs, sources,
                       column.bytes(range), kernels::Fold::kLeft, is_last, after);
      if (column.buffer == nullptr) column.read[at] = added;
      std::fill_n(column.ready.begin() + static_cast<std::ptrdiff_t>(at), range.end - at, added);
      users.push_back(added);
    }
    if (column.buffer != nullptr) column.buffer->be_used_by(users);
    buffer.be_used_by(column.written(kept));
    column.held = kept;
    column.buffer = &buffer;
  }

  // Sends a part of what is held; returns what reads it last, if that is in a buffer.
  std::uint32_t give(Column& column, Rank index, Rank to, Range given) {
    if (column.buffer != nullptr)
      return plan_.send(to, column.mine(given.begin), column.bytes(given), column.written(given));
    if (!gathers_ || given.end - given.begin == 1) {
      for (std::size_t at = given.begin; at < given.end; ++at)
        column.read[at] = plan_.send(to, column.mine(at), column.pieces[at].bytes);
      return PlanBuilder::kNothing;
    }
    Buffer& gathered = gathered_[static_cast<std::size_t>(index % kColumnsInFlight)];
    for (std::size_t at = given.begin; at < given.end; ++at)
      column.read[at] = plan_.copy(column.packed(gathered, given.begin, at), column.mine(at),
                                   column.pieces[at].bytes, gathered.last_users);
    const std::vector<std::uint32_t> copies(
        column.read.begin() + static_cast<std::ptrdiff_t>(given.begin),
        column.read.begin() + static_cast<std::ptrdiff_t>(given.end));
    gathered.be_used_by({plan_.send(to, gathered.at, column.bytes(given), copies)});
    return PlanBuilder::kNothing;
  }

  bool is_mine(std::size_t position) const {
    return root_ >= 0 ? root_ == rank_ : list_[position] == rank_;
  }
  // Where a sum lies in this rank's output.
  Slice home(const Column& column, std::size_t position) const {
    return output(column.pieces[position].begin_bytes -
                  (root_ >= 0 ? 0 : parts_.part(rank_).begin_bytes));
  }

  void deliver(Column& column) {
    std::vector<std::uint32_t> users;
    for (std::size_t at = column.held.begin; at < column.held.end; ++at)
      users.push_back(is_mine(at) ? column.ready[at]
                                  : plan_.send(root_ >= 0 ? root_ : list_[at], column.mine(at),
                                               column.pieces[at].bytes, {{column.ready[at]}}));
    column.buffer->be_used_by(users);
    if (root_ == rank_) collect(column);
  }

  // The root's: all sums that others own, over what has been read.
  void collect(const Column& column) {
    for (std::size_t at = 0; at < list_.size(); ++at)
      if (owner(list_[at]) != rank_)
        plan_.recv(owner(list_[at]), home(column, at), column.pieces[at].bytes,
                   {{column.read[at]}});
  }

  const Rank rank_;
  const Rank n_;
  const Rank root_;   // reduce's; -1: everybody gets a part.
  const Rank pairs_;  // The largest power of two that is at most n.
  const Rank levels_;
  const Parts parts_;
  const Rank columns_;
  std::vector<Rank> list_;  // All parts, by their owners' bits reversed.
  bool gathers_ = false;
  std::vector<Buffer> gathered_;
  std::vector<Buffer> buffers_;
  std::deque<Column> under_way_;
  PlanBuilder plan_;
};

}  // namespace

Plan halving_reduce_scatter(const Request& request) {
  return HalvingScatterPlanner(request).plan();
}
Plan halving_reduce(const Request& request) {
  return HalvingScatterPlanner(request).plan();
}

}  // namespace gradring::collectives
