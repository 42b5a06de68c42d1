#include "collectives/flat_memory.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// Large enough that few steps, each with two rounds of flags, are needed while everything fits into
// the caches; small enough that what is in flight stays in them when the vectors do not.
constexpr std::size_t kEntryBytes = 256 * 1024;
// Of all slots. With many ranks entries shrink; memory is only taken as it is touched.
constexpr std::size_t kSlotsBudget = std::size_t{64} << 20;

std::size_t entry_bytes_for(std::size_t ranks) {
  const std::size_t share = kSlotsBudget / (ranks * ranks * FlatMemory::kSlots);
  return std::clamp(share / kLineBytes * kLineBytes, kLineBytes, kEntryBytes);
}

}  // namespace

std::size_t FlatMemory::bytes(Rank ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return n * (sizeof(Counters) + kPosts * sizeof(Post) + kPayloads * kPayloadBytes +
              kSlots * n * entry_bytes_for(n));
}

FlatMemory::FlatMemory(transport::SharedMemory memory, Rank ranks)
    : memory_(std::move(memory)),
      entry_bytes_(entry_bytes_for(static_cast<std::size_t>(ranks))),
      slot_bytes_(entry_bytes_ * static_cast<std::size_t>(ranks)) {
  GRADRING_ASSERT(memory_.bytes() >= bytes(ranks));
  const auto n = static_cast<std::size_t>(ranks);
  counters_ = reinterpret_cast<Counters*>(memory_.data());
  posts_ = reinterpret_cast<Post*>(counters_ + n);
  payloads_ = reinterpret_cast<std::byte*>(posts_ + n * kPosts);
  slots_ = payloads_ + n * kPayloads * kPayloadBytes;
}

}  // namespace gradring::collectives
