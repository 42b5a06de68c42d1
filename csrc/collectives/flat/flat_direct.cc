#include "collectives/flat/flat_direct.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// Between two of these a long copy says that it goes on, and hears of a failure.
constexpr std::size_t kStretchBytes = std::size_t{8} << 20;

// From here on a broadcast goes through the slots, wherever cores lie: its root and the others can
// copy at once.
constexpr std::size_t kLongBroadcastBytes = std::size_t{4} << 20;
// Where ranks share processors: from here on waiting for each other costs little beside the copies.
constexpr std::size_t kSharedGatherBytes = std::size_t{1} << 20;

// ThreadSanitizer knows no fences, and does not see what another process reads or writes.
void fence() {
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

FlatDirect::FlatDirect(FlatSide& side) : side_(side) {
  side_.memory.card(side_.rank) = token_.card();
}

bool FlatDirect::is_for(const Request& request, std::size_t bytes) const {
  if (side_.memory.shares_processors())
    return request.op == OpKind::kAllGather && bytes >= kSharedGatherBytes;
  return request.op == OpKind::kAllGather || bytes < kLongBroadcastBytes;
}

FlatDirect::Offer FlatDirect::offer(const std::byte* input) const {
  return {reinterpret_cast<std::uintptr_t>(input), peers_.empty() ? 0u : 1u};
}

FlatDirect::Offer FlatDirect::offer_of(Rank peer, std::uint32_t round) const {
  return std::bit_cast<Offer>(side_.memory.long_post(peer, round).about);
}

bool FlatDirect::is_agreed(std::uint32_t round) {
  works_ = true;
  for (Rank rank = 0; rank < side_.ranks; ++rank)
    works_ = works_ && offer_of(rank, round).is_made != 0;
  if (tries_ == 0) open_peers();  // All have posted, so all cards are there.
  tries_ = std::min(tries_ + 1, 2);
  return works_;
}

void FlatDirect::open_peers() {
  peers_.resize(static_cast<std::size_t>(side_.ranks));
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer)) {
    auto memory = transport::PeerMemory::open(side_.memory.card(peer));
    if (!memory) return peers_.clear();
    peers_[static_cast<std::size_t>(peer)] = memory;
  }
}

// What `of` contributes, in bytes of the output.
FlatPart FlatDirect::part(const FlatShape& shape, const Request& request, Rank of) const {
  if (request.op == OpKind::kAllGather) return shape.part(of);
  return {0, of == request.root ? shape.bytes() : 0};
}

void FlatDirect::begin(const FlatShape& shape, const Request& request, const std::byte* input,
                       std::byte* output) const {
  const FlatPart own = part(shape, request, side_.rank);
  const auto copy = kernels::copy_for(shape.bytes(), static_cast<std::size_t>(side_.ranks));
  if (own.bytes != 0 && input != output + own.begin) copy(output + own.begin, input, own.bytes);
}

bool FlatDirect::finish(const FlatShape& shape, const Request& request, std::uint32_t round,
                        std::byte* output, transport::Idle& idle) {
  const std::uint32_t done = side_.steps + 1;
  bool is_whole = true;
  for (Rank from = side_.next(side_.rank); from != side_.rank; from = side_.next(from))
    is_whole = is_whole && read(part(shape, request, from), from, round, output, idle);
  if (!is_whole) side_.mine().unread.value.store(done, std::memory_order_relaxed);
  FlatSide::publish(side_.mine().consumed, done);
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer)) {
    Counters& theirs = side_.memory.counters(peer);
    side_.wait(peer, theirs.consumed, done, idle);
    is_whole = is_whole && theirs.unread.value.load(std::memory_order_relaxed) != done;
  }
  side_.finish(done);
  if (is_whole) return true;
  works_ = false;
  peers_.clear();
  return false;
}

bool FlatDirect::read(FlatPart part, Rank from, std::uint32_t round, std::byte* output,
                      transport::Idle& idle) const {
  const auto& memory = *peers_[static_cast<std::size_t>(from)];
  const std::uint64_t address = offer_of(from, round).address;
  for (std::size_t at = 0; at < part.bytes; at += kStretchBytes) {
    const std::size_t bytes = std::min(kStretchBytes, part.bytes - at);
    if (!memory.read(output + part.begin + at, address + at, bytes)) return false;
    if (bytes < kStretchBytes) break;
    idle.reset();
    idle.check();
  }
  throw_if_withdrawn(from, idle);
  return true;
}

void FlatDirect::withdraw() const {
  side_.mine().withdrawn.value.store(1, std::memory_order_relaxed);
  fence();  // Before anything that the caller writes into its vector.
}

// What was read may then be anything. The others' end comes with the reason.
void FlatDirect::throw_if_withdrawn(Rank peer, transport::Idle& idle) const {
  fence();  // After all that was read.
  Counters& theirs = side_.memory.counters(peer);
  if (theirs.withdrawn.value.load(std::memory_order_relaxed) == 0) return;
  side_.wait(peer, theirs.gone, 1, idle);
  const Rank world_rank = side_.in_world(peer);
  throw PeerLost(world_rank, str("rank ", world_rank, " gave this call up and left"));
}

}  // namespace gradring::collectives
