#include "ps/tables/merge.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/copy_bytes.h"
#include "base/error.h"
#include "base/prefetch.h"
#include "kernels/clones.h"
#include "ps/tables/partition.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kSlotsAhead = 16;  // Ids whose slots are on their way into the cache.
constexpr std::size_t kRowsAhead = 12;   // Positions whose rows are.
// Longer lists are not remembered, which takes up to 24 bytes an id, and the memory that finding
// their ids took, up to 32 bytes an id, is given back.
constexpr std::size_t kMostRemembered = 1u << 20;

// Finds equal ids. From one list to the next it keeps its memory, but nothing that was in it.
class Finder {
 public:
  // Written without jumps that nobody can foresee, whether an id is new above all: they would take
  // three quarters of the time.
  void run(std::span<const std::uint64_t> ids) {
    begin(ids.size());
    std::size_t homes[kSlotsAhead];
    const auto ask_for = [&](std::size_t i) {
      homes[i % kSlotsAhead] = mix_id(ids[i]) & mask_;
      prefetch_near(&slots_[homes[i % kSlotsAhead]]);
    };
    for (std::size_t i = 0; i < std::min(kSlotsAhead, ids.size()); ++i) ask_for(i);
    std::uint32_t next = 1;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint64_t id = ids[i];
      std::size_t at = homes[i % kSlotsAhead];
      if (i + kSlotsAhead < ids.size()) ask_for(i + kSlotsAhead);
      distinct_[0] = id;  // An empty slot ends the search, too.
      while (distinct_[slots_[at]] != id) at = (at + 1) & mask_;
      const std::uint32_t known = slots_[at];
      const std::uint32_t is_new = known == 0 ? 1 : 0;
      const std::uint32_t number = known + is_new * next;
      slots_[at] = number;
      distinct_[next] = id;  // If it is not new, the next id takes its place.
      next += is_new;
      ++counts_[number];
      numbers_[i] = number - 1;
    }
    found_ = next - 1;
  }

  // For each position the number of its id, counted in the order of their first occurrences; the
  // ids in that order; and how often each occurs, where the caller may write what it likes.
  std::span<const std::uint32_t> numbers() const { return numbers_; }
  std::span<const std::uint64_t> distinct() const {
    return std::span(distinct_).subspan(1, found_);
  }
  std::span<std::uint32_t> counts() { return std::span(counts_).subspan(1, found_); }

  // What was found is not needed any more.
  void give_back_what_is_large() {
    if (slots_.capacity() > 2 * kMostRemembered) *this = Finder();
  }

 private:
  void begin(std::size_t count) {
    const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * count, 64));
    mask_ = slots - 1;
    slots_.assign(slots, 0);
    numbers_.resize(count);
    distinct_.resize(count + 2);
    counts_.assign(count + 1, 0);
  }

  std::vector<std::uint32_t> slots_;     // 0: empty; else the number of its id, plus 1,
  std::vector<std::uint64_t> distinct_;  // by which it lies in here,
  std::vector<std::uint32_t> counts_;    // and what is known of it here.
  std::vector<std::uint32_t> numbers_;
  std::size_t mask_ = 0;
  std::size_t found_ = 0;
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
    const auto found = std::make_shared<Found>(find(ids, shards, false));
    last = nullptr;
    if (ids.size() <= kMostRemembered) {
      found->list.assign(ids.begin(), ids.end());
      last = found;
    }
    found_ = found;
    finder_of_thread().give_back_what_is_large();
  }
  ids_ = found_->is_identity ? ids : found_->ids;
}

bool Distinct::Found::is_of(std::span<const std::uint64_t> other, std::uint32_t shards) const {
  return begins.size() == shards + 1 &&
         std::equal(other.begin(), other.end(), list.begin(), list.end());
}

Distinct::Found Distinct::find(std::span<const std::uint64_t> ids, std::uint32_t shards,
                               bool is_promised) {
  Found found;
  Finder& finder = finder_of_thread();
  if (!is_promised) finder.run(ids);
  const auto distinct = is_promised ? ids : finder.distinct();
  const bool are_distinct = distinct.size() == ids.size();
  if (are_distinct && shards == 1) {
    found.begins = {0, ids.size()};
    found.is_identity = true;
    return found;
  }
  std::vector<std::uint32_t> place_of;
  found.order_by_shard(distinct, shards, place_of);
  std::vector<std::uint32_t>& starts = found.starts;
  starts.assign(distinct.size() + 1, 0);
  found.positions.resize(ids.size());
  if (are_distinct) {
    std::iota(starts.begin(), starts.end(), 0U);
    for (std::uint32_t i = 0; i < ids.size(); ++i) found.positions[place_of[i]] = i;
    return found;
  }
  const auto counts = finder.counts();
  for (std::size_t number = 0; number < distinct.size(); ++number)
    starts[place_of[number] + 1] = counts[number];
  for (std::size_t place = 0; place < distinct.size(); ++place) starts[place + 1] += starts[place];
  const auto next = counts;  // Where each id's next position goes.
  for (std::size_t number = 0; number < distinct.size(); ++number)
    next[number] = starts[place_of[number]];
  const auto numbers = finder.numbers();
  for (std::uint32_t i = 0; i < ids.size(); ++i) found.positions[next[numbers[i]]++] = i;
  return found;
}

// A stable counting sort; place_of[i] is where distinct[i] went.
void Distinct::Found::order_by_shard(std::span<const std::uint64_t> distinct, std::uint32_t shards,
                                     std::vector<std::uint32_t>& place_of) {
  begins.assign(shards + 1, 0);
  place_of.resize(distinct.size());
  if (shards == 1) {
    begins[1] = distinct.size();
    std::iota(place_of.begin(), place_of.end(), 0U);
    ids.assign(distinct.begin(), distinct.end());
    return;
  }
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
