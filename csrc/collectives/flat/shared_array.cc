#include "collectives/flat/shared_array.h"

#include <algorithm>
#include <utility>

#include "base/copy_bytes.h"
#include "base/error.h"

namespace gradring::collectives {
namespace {

// Given out at once: long enough that claiming costs nothing, short enough that all end together.
constexpr std::size_t kGrainBytes = 128 * 1024;
// What is reduced before it is copied to the other ranks: it stays in a first-level cache.
constexpr std::size_t kSpreadBlockBytes = 16 * 1024;
// Parts begin at different lines of a page, or equal places of many ranks would fight for one set
// of a cache.
constexpr std::size_t kStaggerBytes = 5 * kLineBytes;

// The same for all ranks, as they have one kernel. What controls the array shares no page with a
// part: a rank that takes its own part away (detach) would take that too.
std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = transport::SharedMemory::page_bytes();
  return (bytes + page - 1) / page * page;
}

}  // namespace

std::size_t SharedArray::control_bytes(Rank ranks) {
  return whole_pages(sizeof(Control) + static_cast<std::size_t>(ranks) * sizeof(Holding));
}

std::size_t SharedArray::stride_for(std::size_t bytes) {
  return whole_pages(bytes) + kStaggerBytes;
}

std::size_t SharedArray::memory_bytes(Rank ranks, std::size_t bytes) {
  return control_bytes(ranks) + whole_pages(static_cast<std::size_t>(ranks) * stride_for(bytes));
}

SharedArray::SharedArray(transport::SharedMemory memory, Rank rank, Rank ranks, std::size_t bytes,
                         std::uint32_t number)
    : memory_(std::move(memory)),
      rank_(rank),
      ranks_(ranks),
      bytes_(bytes),
      stride_bytes_(stride_for(bytes)),
      number_(number) {
  GRADRING_ASSERT(memory_.bytes() >= memory_bytes(ranks, bytes));
  control_ = reinterpret_cast<Control*>(memory_.data());
  holding_ = reinterpret_cast<Holding*>(memory_.data() + sizeof(Control));
  parts_ = memory_.data() + control_bytes(ranks);
}

bool SharedArray::holds(const std::byte* begin, std::size_t bytes) const {
  return begin >= data() && bytes <= bytes_ &&
         static_cast<std::size_t>(begin - data()) <= bytes_ - bytes;
}

// The next piece of this round, or `pieces` when none is left.
std::uint32_t SharedArray::claim(std::uint32_t pieces) const {
  std::uint64_t seen = control_->claimed.load(std::memory_order_relaxed);
  while (true) {
    const bool is_begun = static_cast<std::uint32_t>(seen >> 32) == round_;
    // A rank that comes late, when others are in a later round, finds nothing left either.
    const auto is_over = static_cast<std::int32_t>(static_cast<std::uint32_t>(seen >> 32) - round_);
    if (is_over > 0) return pieces;
    const std::uint32_t next = is_begun ? static_cast<std::uint32_t>(seen) : 0;
    if (next >= pieces) return pieces;
    const std::uint64_t wanted = (std::uint64_t{round_} << 32) | (next + 1);
    if (control_->claimed.compare_exchange_weak(seen, wanted, std::memory_order_relaxed))
      return next;
  }
}

// Another rank with a piece in hand: who is waited for when nothing is left to claim.
Rank SharedArray::holder() const {
  for (Rank rank = 0; rank < ranks_; ++rank)
    if (rank != rank_ && holding_[rank].load(std::memory_order_relaxed) != 0) return rank;
  return rank_ + 1 == ranks_ ? 0 : rank_ + 1;
}

void SharedArray::reduce_in_place(FlatSide& side, FlatShape& shape, std::size_t offset,
                                  transport::Idle& idle) {
  const std::size_t steps = (shape.largest_part_bytes() + kGrainBytes - 1) / kGrainBytes;
  const auto pieces = static_cast<std::uint32_t>(steps * static_cast<std::size_t>(ranks_));
  const auto ranks = static_cast<std::uint32_t>(ranks_);
  finished_ += pieces;
  ++round_;
  holding_[rank_].store(1, std::memory_order_relaxed);
  for (std::uint32_t index; (index = claim(pieces)) < pieces;) {
    const auto owner = static_cast<Rank>(index % ranks);
    const FlatPart whole = shape.part(owner);
    const std::size_t begin = std::min(whole.bytes, std::size_t{index / ranks} * kGrainBytes);
    const std::size_t end = std::min(whole.bytes, begin + kGrainBytes);
    for (std::size_t at = begin; at < end; at += kSpreadBlockBytes) {
      const std::size_t bytes = std::min(kSpreadBlockBytes, end - at);
      const std::size_t place = offset + whole.begin + at;
      shape.reduce(part(0) + place, bytes, owner, [&](Rank rank) { return part(rank) + place; });
      for (Rank rank = 1; rank < ranks_; ++rank)
        copy_bytes(part(rank) + place, part(0) + place, bytes);
    }
    // Pairs with has_reached below; seq_cst with the sleepers' count, as FlatSide::publish.
    control_->finished.value.fetch_add(1, std::memory_order_seq_cst);
    idle.reset();
  }
  holding_[rank_].store(0, std::memory_order_relaxed);
  if (control_->finished.has_reached(finished_)) {
    FlatSide::wake_sleepers(control_->finished);
    return;
  }
  while (!control_->finished.has_reached(finished_))
    side.wait_a_little(holder(), control_->finished, finished_, idle);
}

void SharedArrays::add(const std::shared_ptr<SharedArray>& array) {
  std::erase_if(arrays_, [](const auto& known) { return known.expired(); });
  arrays_.push_back(array);
}

SharedArrays::Found SharedArrays::find(const std::byte* begin, std::size_t bytes) const {
  for (const auto& known : arrays_) {
    auto array = known.lock();
    if (!array || !array->holds(begin, bytes)) continue;
    const auto offset = static_cast<std::uint64_t>(begin - array->data());
    const SharedPlace place{std::uint64_t{array->number()} + 1, offset};
    return {std::move(array), place};
  }
  return {};
}

}  // namespace gradring::collectives
