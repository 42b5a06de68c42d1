#include "collectives/flat/flat_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// Large enough that few steps, each with two rounds of flags, are needed.
constexpr std::size_t kLeastEntryBytes = 64 * 1024;
constexpr std::size_t kMostEntryBytes = 256 * 1024;  // Of slots taken at once.
// All slots of a few ranks. Each rank's are more than one core's second-level cache holds: what
// another core reads is by then in the cache that they share, from where it takes a half to a third
// of the time (docs/decisions/0016-slots-are-longer-than-a-cache.md). Together they are less than
// that one holds.
constexpr std::size_t kFewRanksBytes = std::size_t{8} << 20;
// All slots of many, whose entries shrink; memory is only taken for long operations.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// The same for payloads: of a rank, and of all together as long as there are a few for each.
constexpr std::size_t kPayloadsBytes = std::size_t{2} << 20;
constexpr std::size_t kMostPayloadsBytes = std::size_t{8} << 20;

std::size_t places_for(std::size_t ranks) {
  const std::size_t bytes = std::min(kPayloadsBytes, kMostPayloadsBytes / ranks);
  return std::max<std::size_t>(std::bit_floor(bytes / FlatMemory::kPayloadBytes),
                               FlatMemory::kPayloads);
}

std::size_t entry_bytes_for(std::size_t ranks) {
  const std::size_t entries = ranks * ranks * FlatMemory::kSlots;
  const std::size_t bytes =
      std::min(std::max(kLeastEntryBytes, kFewRanksBytes / entries), kMostBytes / entries);
  return std::max(bytes / kLineBytes, std::size_t{1}) * kLineBytes;
}

}  // namespace

std::size_t FlatMemory::bytes(Rank ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return sizeof(FlatLayout) + n * (sizeof(Counters) + kPosts * sizeof(Post) +
                                   places_for(n) * kPayloadBytes + kSlots * n * entry_bytes_for(n));
}

void FlatMemory::lay_out(const transport::SharedMemory& memory, const FlatLayout& layout) {
  std::memcpy(memory.data(), &layout, sizeof layout);
}

FlatMemory::FlatMemory(transport::SharedMemory memory, Rank ranks)
    : memory_(std::move(memory)),
      entry_bytes_(entry_bytes_for(static_cast<std::size_t>(ranks))),
      slot_bytes_(entry_bytes_ * static_cast<std::size_t>(ranks)),
      places_(static_cast<std::uint32_t>(places_for(static_cast<std::size_t>(ranks)))) {
  GRADRING_ASSERT(memory_.bytes() >= bytes(ranks));
  const auto n = static_cast<std::size_t>(ranks);
  FlatLayout layout;
  std::memcpy(&layout, memory_.data(), sizeof layout);
  shares_processors_ = layout.shares_processors != 0;
  spreads_ = layout.core_lines_are_slow != 0;
  // Who shares processors loses less by being far ahead than by changes from one rank to another.
  // All are powers of two: a payload, spread or not, lies in a place of its own for so long.
  window_ = shares_processors_ ? std::min(kPosts, places_) : kPayloads;
  counters_ = reinterpret_cast<Counters*>(memory_.data() + sizeof(FlatLayout));
  posts_ = reinterpret_cast<Post*>(counters_ + n);
  payloads_ = reinterpret_cast<std::byte*>(posts_ + n * kPosts);
  slots_ = payloads_ + n * places_ * kPayloadBytes;
}

std::uint32_t FlatMemory::slots_at_once(std::size_t bytes) const {
  std::uint32_t slots = 1;
  while (slots < kSlots / 2 && slots * entry_bytes_ < bytes &&
         2 * slots * entry_bytes_ <= kMostEntryBytes)
    slots *= 2;
  return slots;
}

}  // namespace gradring::collectives
