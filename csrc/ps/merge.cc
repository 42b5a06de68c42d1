#include "ps/merge.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/copy_bytes.h"
#include "base/error.h"
#include "base/prefetch.h"
#include "kernels/clones.h"
#include "ps/partition.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kIdsAhead = 16;   // Ids whose slots are on their way into the cache.
constexpr std::size_t kRowsAhead = 12;  // Positions whose rows are.
// Longer lists are not remembered: what was found of one takes up to 20 bytes an id.
constexpr std::size_t kMostRemembered = 1u << 20;
constexpr std::size_t kMostKeptSlots = 1u << 20;  // 16 MiB; what larger lists took is given back.

// Finds equal ids. Its slots are used again by the next list: an older list's have another epoch.
class Finder {
 public:
  // For each position the number of its id, counted in the order of their first occurrences; the
  // ids in that order; and how often each occurs.
  void run(std::span<const std::uint64_t> ids) {
    numbers.resize(ids.size());
    distinct.clear();
    counts.clear();
    use_slots(std::bit_ceil(std::max<std::size_t>(ids.size(), 64)));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i + kIdsAhead < ids.size()) prefetch_near(&slots_[slot_of(ids[i + kIdsAhead])]);
      numbers[i] = number_of(ids[i]);
    }
  }
  // What was found is not needed any more.
  void give_back_what_is_large() {
    if (slots_.size() > kMostKeptSlots) slots_ = {};
    if (numbers.capacity() > kMostRemembered) numbers = {};
    if (distinct.capacity() > kMostRemembered) distinct = {};
    if (counts.capacity() > kMostRemembered) counts = {};
  }

  std::vector<std::uint32_t> numbers;
  std::vector<std::uint64_t> distinct;
  std::vector<std::uint32_t> counts;

 private:
  struct Slot {
    std::uint64_t id;
    std::uint32_t epoch;
    std::uint32_t number;
  };

  std::size_t slot_of(std::uint64_t id) const { return mix_id(id) & mask_; }

  // Empties `count` slots, a power of two, for the ids that are known so far and those to come.
  void use_slots(std::size_t count) {
    if (slots_.size() < count || epoch_ == UINT32_MAX) {
      slots_.assign(std::max(count, slots_.size()), Slot{});
      epoch_ = 0;
    }
    ++epoch_;
    mask_ = count - 1;
    for (std::uint32_t number = 0; number < distinct.size(); ++number)
      slots_[place_of(distinct[number])] = {distinct[number], epoch_, number};
  }

  // Where the id is, or the empty slot where it would go.
  std::size_t place_of(std::uint64_t id) const {
    std::size_t at = slot_of(id);
    while (slots_[at].epoch == epoch_ && slots_[at].id != id) at = (at + 1) & mask_;
    return at;
  }

  std::uint32_t number_of(std::uint64_t id) {
    Slot& slot = slots_[place_of(id)];
    std::uint32_t number = slot.number;
    if (slot.epoch != epoch_) {
      number = static_cast<std::uint32_t>(distinct.size());
      slot = {id, epoch_, number};
      distinct.push_back(id);
      counts.push_back(0);
      if (2 * distinct.size() > mask_) use_slots(2 * (mask_ + 1));
    }
    ++counts[number];
    return number;
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;  // Of the slots in use: no more than a list needs, to stay in the cache.
  std::uint32_t epoch_ = 0;
};

// Rows by position, in the order of a list of positions: those to come are on their way.
class RowsAhead {
 public:
  RowsAhead(const float* rows, std::size_t dim, std::span<const std::uint32_t> positions)
      : rows_(rows), dim_(dim), end_(positions.data() + positions.size()) {}

  // Once for each position, in turn.
  GRADRING_PREFETCHES void fetch_after(const std::uint32_t* position) const {
    if (end_ - position > static_cast<std::ptrdiff_t>(kRowsAhead))
      prefetch_row(rows_ + position[kRowsAhead] * dim_, dim_);
  }

 private:
  const float* rows_;
  std::size_t dim_;
  const std::uint32_t* end_;
};

// sum += each of `rows[positions[..]]`, one after the other, in every column.
GRADRING_CLONES void add_rows(const float* rows, const RowsAhead& ahead,
                              std::span<const std::uint32_t> positions, std::size_t dim,
                              float* sum) {
  const std::uint32_t* at = positions.data();
  const std::uint32_t* const end = at + positions.size();
  for (; end - at >= 4; at += 4) {
    for (std::size_t i = 0; i < 4; ++i) ahead.fetch_after(at + i);
    const float* const a = rows + at[0] * dim;
    const float* const b = rows + at[1] * dim;
    const float* const c = rows + at[2] * dim;
    const float* const d = rows + at[3] * dim;
    for (std::size_t column = 0; column < dim; ++column)
      sum[column] = (((sum[column] + a[column]) + b[column]) + c[column]) + d[column];
  }
  for (; at < end; ++at) {
    ahead.fetch_after(at);
    const float* const a = rows + *at * dim;
    for (std::size_t column = 0; column < dim; ++column) sum[column] += a[column];
  }
}

// Not inlined: the address of a thread's own memory costs a call in a shared library.
__attribute__((noinline)) Finder& finder_of_thread() {
  thread_local Finder finder;
  return finder;
}

// Without a table, and it ends at the first id that is out of order.
bool grows(std::span<const std::uint64_t> ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

}  // namespace

Distinct::Distinct(std::span<const std::uint64_t> ids, std::uint32_t shards, bool is_promised) {
  if (ids.size() > UINT32_MAX)
    throw InvalidArgument(str(ids.size(), " ids are too many for one call; the most is 2^32 - 1"));
  thread_local std::shared_ptr<const Found> last;
  // Sorted lists are common, np.unique makes them.
  if (is_promised || grows(ids)) {
    found_ = std::make_shared<Found>(find(ids, shards, true));
  } else if (last && last->is_of(ids, shards)) {
    found_ = last;
  } else {
    found_ = std::make_shared<Found>(find(ids, shards, false));
    last = ids.size() <= kMostRemembered ? found_ : nullptr;
    finder_of_thread().give_back_what_is_large();
  }
  ids_ = found_->is_identity ? ids : found_->ids;
}

// Every position is in it once, so that a list with all of these ids there is the same list.
bool Distinct::Found::is_of(std::span<const std::uint64_t> list, std::uint32_t shards) const {
  if (begins.size() != shards + 1) return false;
  if (is_identity) return std::equal(list.begin(), list.end(), ids.begin(), ids.end());
  if (list.size() != positions.size()) return false;
  for (std::size_t place = 0; place < ids.size(); ++place)
    for (std::size_t at = starts[place]; at < starts[place + 1]; ++at)
      if (list[positions[at]] != ids[place]) return false;
  return true;
}

Distinct::Found Distinct::find(std::span<const std::uint64_t> ids, std::uint32_t shards,
                               bool is_promised) {
  Found found;
  Finder& finder = finder_of_thread();
  if (!is_promised) finder.run(ids);
  const bool are_distinct = is_promised || finder.distinct.size() == ids.size();
  if (are_distinct && shards == 1) {
    if (!is_promised) found.ids.assign(ids.begin(), ids.end());
    found.begins = {0, ids.size()};
    found.is_identity = true;
    return found;
  }
  std::vector<std::uint32_t> place_of;
  found.order_by_shard(are_distinct ? ids : finder.distinct, shards, place_of);
  std::vector<std::uint32_t>& starts = found.starts;
  starts.assign(found.ids.size() + 1, 0);
  for (std::size_t number = 0; number < found.ids.size(); ++number)
    starts[place_of[number] + 1] = are_distinct ? 1 : finder.counts[number];
  for (std::size_t place = 0; place < found.ids.size(); ++place) starts[place + 1] += starts[place];
  found.positions.resize(ids.size());
  if (are_distinct) {
    for (std::uint32_t i = 0; i < ids.size(); ++i) found.positions[place_of[i]] = i;
    return found;
  }
  std::vector<std::uint32_t>& next = finder.counts;  // Where each id's next position goes.
  for (std::size_t number = 0; number < found.ids.size(); ++number)
    next[number] = starts[place_of[number]];
  for (std::uint32_t i = 0; i < ids.size(); ++i) found.positions[next[finder.numbers[i]]++] = i;
  return found;
}

// A stable counting sort; place_of[i] is where distinct[i] went.
void Distinct::Found::order_by_shard(std::span<const std::uint64_t> distinct, std::uint32_t shards,
                                     std::vector<std::uint32_t>& place_of) {
  begins.assign(shards + 1, 0);
  place_of.resize(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    place_of[i] = shard_of(distinct[i], shards);
    ++begins[place_of[i] + 1];
  }
  for (std::uint32_t shard = 0; shard < shards; ++shard) begins[shard + 1] += begins[shard];
  std::vector<std::size_t> next(begins.begin(), begins.end() - 1);
  ids.resize(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    place_of[i] = static_cast<std::uint32_t>(next[place_of[i]]++);
    ids[place_of[i]] = distinct[i];
  }
}

void Distinct::fan_out(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
                       float* out) const {
  if (is_identity()) {
    copy_bytes(out + first * dim, rows, count * dim * sizeof(float));
    return;
  }
  const RowsAhead ahead(out, dim, found_->positions);
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::uint32_t& position : positions(first + i)) {
      ahead.fetch_after(&position);
      std::memcpy(out + position * dim, rows + i * dim, dim * sizeof(float));
    }
  }
}

void Distinct::sum(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
                   float* sums) const {
  if (is_identity()) {
    copy_bytes(sums, rows + first * dim, count * dim * sizeof(float));
    return;
  }
  const RowsAhead ahead(rows, dim, found_->positions);
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = positions(first + i);
    float* const sum = sums + i * dim;
    ahead.fetch_after(from.data());
    std::memcpy(sum, rows + from[0] * dim, dim * sizeof(float));
    add_rows(rows, ahead, from.subspan(1), dim, sum);
  }
}

}  // namespace gradring::ps
