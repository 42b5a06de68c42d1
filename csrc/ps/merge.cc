#include "ps/merge.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "ps/partition.h"

// Compiled twice where the compiler can and no sanitizer stands in the way of its resolver.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GRADRING_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GRADRING_CLONES
#endif

namespace gradring::ps {
namespace {

constexpr std::size_t kAhead = 16;  // Ids whose slots are on their way into the cache.
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
      if (i + kAhead < ids.size()) __builtin_prefetch(&slots_[slot_of(ids[i + kAhead])], 1);
      numbers[i] = number_of(ids[i]);
    }
    if (slots_.size() > kMostKeptSlots) slots_ = {};
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

// sum += each of `rows[positions[..]]`, one after the other, in every column.
GRADRING_CLONES void add_rows(const float* rows, const std::uint32_t* positions, std::size_t count,
                              std::size_t dim, float* sum) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const float* const a = rows + positions[i] * dim;
    const float* const b = rows + positions[i + 1] * dim;
    const float* const c = rows + positions[i + 2] * dim;
    const float* const d = rows + positions[i + 3] * dim;
    for (std::size_t column = 0; column < dim; ++column)
      sum[column] = (((sum[column] + a[column]) + b[column]) + c[column]) + d[column];
  }
  for (; i < count; ++i) {
    const float* const a = rows + positions[i] * dim;
    for (std::size_t column = 0; column < dim; ++column) sum[column] += a[column];
  }
}

// Without a table, and it ends at the first id that is out of order.
bool grows(std::span<const std::uint64_t> ids) {
  return std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

}  // namespace

Distinct::Distinct(std::span<const std::uint64_t> ids, std::uint32_t shards, bool is_promised) {
  if (ids.size() > UINT32_MAX)
    throw InvalidArgument(str(ids.size(), " ids are too many for one call; the most is 2^32 - 1"));
  thread_local Finder finder;
  // Sorted lists are common, np.unique makes them.
  is_promised = is_promised || grows(ids);
  if (!is_promised) finder.run(ids);
  const bool are_distinct = is_promised || finder.distinct.size() == ids.size();
  if (are_distinct && shards == 1) {
    ids_ = ids;
    begins_ = {0, ids.size()};
    is_identity_ = true;
    return;
  }
  std::vector<std::uint32_t> place_of;
  order_by_shard(are_distinct ? ids : finder.distinct, shards, place_of);
  starts_.assign(ids_.size() + 1, 0);
  for (std::size_t number = 0; number < ids_.size(); ++number)
    starts_[place_of[number] + 1] = are_distinct ? 1 : finder.counts[number];
  for (std::size_t place = 0; place < ids_.size(); ++place) starts_[place + 1] += starts_[place];
  positions_.resize(ids.size());
  if (are_distinct) {
    for (std::uint32_t i = 0; i < ids.size(); ++i) positions_[place_of[i]] = i;
    return;
  }
  std::vector<std::uint32_t>& next = finder.counts;  // Where each id's next position goes.
  for (std::size_t number = 0; number < ids_.size(); ++number)
    next[number] = starts_[place_of[number]];
  for (std::uint32_t i = 0; i < ids.size(); ++i) positions_[next[finder.numbers[i]]++] = i;
}

// A stable counting sort; place_of[i] is where distinct[i] went.
void Distinct::order_by_shard(std::span<const std::uint64_t> distinct, std::uint32_t shards,
                              std::vector<std::uint32_t>& place_of) {
  begins_.assign(shards + 1, 0);
  place_of.resize(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    place_of[i] = shard_of(distinct[i], shards);
    ++begins_[place_of[i] + 1];
  }
  for (std::uint32_t shard = 0; shard < shards; ++shard) begins_[shard + 1] += begins_[shard];
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  ordered_.resize(distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    place_of[i] = static_cast<std::uint32_t>(next[place_of[i]]++);
    ordered_[place_of[i]] = distinct[i];
  }
  ids_ = ordered_;
}

void Distinct::fan_out(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
                       float* out) const {
  if (is_identity_) {
    if (count > 0) std::memcpy(out + first * dim, rows, count * dim * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    for (const std::uint32_t position : positions(first + i))
      std::memcpy(out + position * dim, rows + i * dim, dim * sizeof(float));
  }
}

void Distinct::sum(std::size_t first, std::size_t count, const float* rows, std::size_t dim,
                   float* sums) const {
  if (is_identity_) {
    if (count > 0) std::memcpy(sums, rows + first * dim, count * dim * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = positions(first + i);
    float* const sum = sums + i * dim;
    std::memcpy(sum, rows + from[0] * dim, dim * sizeof(float));
    add_rows(rows, from.data() + 1, from.size() - 1, dim, sum);
  }
}

}  // namespace gradring::ps
