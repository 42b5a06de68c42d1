// An index from ids to numbers: open addressing with linear probing, at most half full while there
// is memory, in segments that grow one by one, so that no insertion pays for the whole index. Any
// id is allowed. Owned by the table's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/prefetch.h"
#include "ps/tables/pages.h"
#include "ps/tables/partition.h"

namespace gradring::ps {

class HashIndex {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};  // No value can be this.
  static constexpr std::size_t kSegments = 128;

  // The id's value, or kNone.
  std::uint64_t find(std::uint64_t id) const {
    const std::uint64_t hash = mix_id(id);
    const Segment& segment = segment_of(hash);
    std::uint64_t at = hash & segment.mask;
    while (segment.slots[at].above != 0 && segment.slots[at].id != id) at = (at + 1) & segment.mask;
    return segment.slots[at].above - 1;
  }
  GRADRING_PREFETCHES void prefetch(std::uint64_t id) const {
    const std::uint64_t hash = mix_id(id);
    const Segment& segment = segment_of(hash);
    prefetch_line(&segment.slots[hash & segment.mask]);
  }
  // So many more ids find room, whatever memory there is by then: in segments that are fuller than
  // half, if they have to be. It asks for memory where they may not be enough. Ids that somebody
  // picks for one segment may find none all the same. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    const std::size_t each = std::min(count, count / 64 + 8);  // Of the segment with the most.
    if (inserted_ + each > room_) [[unlikely]]
      make_room(each);
  }
  // `id` is not in it. Throws std::bad_alloc, and changes nothing then.
  void insert(std::uint64_t id, std::uint64_t value);
  // Inserts or replaces.
  void assign(std::uint64_t id, std::uint64_t value);
  bool erase(std::uint64_t id);  // Whether it was in it.
  void clear();

  std::size_t size() const { return size_; }
  std::size_t bytes() const;
  std::size_t segment_number(std::uint64_t id) const { return segment_bits(mix_id(id)); }
  std::size_t size_in(std::size_t segment) const { return segments_[segment].size; }
  // How many for_each_in() looks at.
  std::size_t slots_in(std::size_t segment) const {
    return segments_[segment].size > 0 ? segments_[segment].mask + 1 : 0;
  }
  // Calls visit(id, value) for everything in one segment, in no order that means anything.
  template <typename Visit>
  void for_each_in(std::size_t segment, Visit&& visit) const {
    const Segment& s = segments_[segment];
    for (std::uint64_t at = 0; s.size > 0 && at <= s.mask; ++at) {
      if (s.slots[at].above != 0) visit(s.slots[at].id, s.slots[at].above - 1);
    }
  }

 private:
  // `above` is the value + 1: memory of zeros is an empty segment.
  struct Slot {
    std::uint64_t id;
    std::uint64_t above;
  };
  struct Segment {
    Slot* slots = &nothing_;
    std::uint64_t mask = 0;
    std::size_t size = 0;
    Pages memory;
  };

  // Shards have neighbouring partitions, which are the upper bits: those say little here.
  static std::size_t segment_bits(std::uint64_t hash) { return (hash >> 40) % kSegments; }
  const Segment& segment_of(std::uint64_t hash) const { return segments_[segment_bits(hash)]; }
  Segment& segment_of(std::uint64_t hash) { return segments_[segment_bits(hash)]; }
  static Slot& slot_for(const Segment& segment, std::uint64_t id);
  static void grow(Segment& segment);
  static void grow_or_fill(Segment& segment);
  // Slots that may be taken without growing: one stays empty, where a search ends.
  static std::size_t room_in(const Segment& segment) { return segment.mask - segment.size; }
  void make_room(std::size_t each);

  static inline Slot nothing_{0, 0};  // Never written: the only slot of a segment without memory.
  std::array<Segment, kSegments> segments_;
  std::size_t size_ = 0;
  std::size_t room_ = 0;      // Of the fullest segment, when make_room() was last called.
  std::size_t inserted_ = 0;  // Since then.
};

}  // namespace gradring::ps
