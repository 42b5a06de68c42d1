#include "ps/tables/hash_index.h"

#include <algorithm>
#include <new>

namespace gradring::ps {

namespace {
constexpr std::size_t kFirstSlots = 16;
}  // namespace

// Where the id is, or the empty slot where it would go.
HashIndex::Slot& HashIndex::slot_for(const Segment& segment, std::uint64_t id) {
  std::uint64_t at = mix_id(id) & segment.mask;
  while (segment.slots[at].above != 0 && segment.slots[at].id != id) at = (at + 1) & segment.mask;
  return segment.slots[at];
}

void HashIndex::grow(Segment& segment) {
  const std::size_t slots = segment.memory.data() == nullptr ? kFirstSlots : (segment.mask + 1) * 2;
  Segment larger;
  larger.memory = Pages(slots * sizeof(Slot));
  larger.slots = reinterpret_cast<Slot*>(larger.memory.data());
  larger.mask = slots - 1;
  larger.size = segment.size;
  for (std::uint64_t at = 0; at <= segment.mask; ++at) {
    const Slot& slot = segment.slots[at];
    if (slot.above != 0) slot_for(larger, slot.id) = slot;
  }
  segment = std::move(larger);
}

// Without memory for a larger one its slots are used up, which makes searches longer.
void HashIndex::grow_or_fill(Segment& segment) {
  try {
    grow(segment);
  } catch (const std::bad_alloc&) {
    if (room_in(segment) == 0) throw;
  }
}

void HashIndex::make_room(std::size_t each) {
  std::size_t least = ~std::size_t{0};
  for (Segment& segment : segments_) {
    while (room_in(segment) < each) grow(segment);
    least = std::min(least, room_in(segment));
  }
  room_ = least;
  inserted_ = 0;
}

void HashIndex::insert(std::uint64_t id, std::uint64_t value) {
  Segment& segment = segment_of(mix_id(id));
  if ((segment.size + 1) * 2 > segment.mask + 1) grow_or_fill(segment);
  slot_for(segment, id) = {id, value + 1};
  ++segment.size;
  ++size_;
  ++inserted_;
}

void HashIndex::assign(std::uint64_t id, std::uint64_t value) {
  Slot& slot = slot_for(segment_of(mix_id(id)), id);
  if (slot.above == 0) return insert(id, value);
  slot.above = value + 1;
}

bool HashIndex::erase(std::uint64_t id) {
  Segment& segment = segment_of(mix_id(id));
  Slot* const found = &slot_for(segment, id);
  if (found->above == 0) return false;
  // Later slots of the same run move down over the hole, unless they would pass their own start.
  auto hole = static_cast<std::uint64_t>(found - segment.slots);
  std::uint64_t at = hole;
  for (;;) {
    at = (at + 1) & segment.mask;
    const Slot& slot = segment.slots[at];
    if (slot.above == 0) break;
    const std::uint64_t start = mix_id(slot.id) & segment.mask;
    if (((at - start) & segment.mask) < ((at - hole) & segment.mask)) continue;
    segment.slots[hole] = slot;
    hole = at;
  }
  segment.slots[hole] = {};
  --segment.size;
  --size_;
  return true;
}

void HashIndex::clear() {
  for (Segment& segment : segments_) segment = {};
  size_ = room_ = inserted_ = 0;
}

std::size_t HashIndex::bytes() const {
  std::size_t bytes = 0;
  for (const Segment& segment : segments_) bytes += segment.memory.bytes();
  return bytes;
}

}  // namespace gradring::ps
