// The shared segment of flat.h: who writes where. Pure layout. Every pointer it hands out lies
// inside the segment whatever another process wrote into it, because nothing read from the segment
// takes part in computing one. Used by the thread that drives a Flat.
//   counters   per rank: how far it is in long operations
//   posts      kPosts per rank, used in turn: what it calls, and a short operation's whole payload
//   slots      kSlots per rank, used in turn: a long operation's payload, one entry per rank
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/call.h"
#include "transport/shared_memory.h"

namespace gradring::collectives {

inline constexpr std::size_t kLineBytes = 64;

// Written by one rank, awaited by others. Counts up for ever, modulo 2^32.
struct Word {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;  // In the kernel until `value` changes: see idle.h.

  // Pairs with the writer's store: what was written before it can be read now.
  bool has_reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

struct alignas(kLineBytes) Counter : Word {};

struct Counters {
  Counter staged;    // Steps of which this rank's slots hold its part.
  Counter reduced;   // Steps of which it has written its result.
  Counter consumed;  // Steps of which it reads nothing any more.
  Counter gone;      // 1: it left, after its last write.
};

// One cache line with room for a few elements behind the call: the shortest operations cost one
// line's way from core to core.
struct alignas(kLineBytes) Post {
  Word round;
  std::uint64_t seq;
  Call call;
  std::array<std::byte, 24> few;
};
static_assert(sizeof(Post) == kLineBytes);

class FlatMemory {
 public:
  static constexpr std::uint32_t kSlots = 2;
  // How far a rank that waits for nobody (a broadcast's root) may be ahead of the others.
  static constexpr std::uint32_t kPosts = 8;
  static constexpr std::size_t kPayloadBytes = 32 * 1024;  // The largest of a post.

  static std::size_t bytes(Rank ranks);
  FlatMemory(transport::SharedMemory memory, Rank ranks);

  // A multiple of kLineBytes, so that no element is cut in two.
  std::size_t entry_bytes() const { return entry_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  Counters& counters(Rank rank) const { return counters_[rank]; }
  Post& post(Rank rank, std::uint32_t round) const {
    return *reinterpret_cast<Post*>(posts_ + post_index(rank, round) * kPostBytes);
  }
  // Where a post's payload of `bytes` lies, at most kPayloadBytes.
  std::byte* payload(Rank rank, std::uint32_t round, std::size_t bytes) const {
    Post& at = post(rank, round);
    return bytes <= at.few.size() ? at.few.data() : reinterpret_cast<std::byte*>(&at + 1);
  }
  std::byte* slot(Rank rank, std::uint32_t step) const {
    return slots_ + (static_cast<std::size_t>(rank) * kSlots + step % kSlots) * slot_bytes_;
  }
  std::byte* entry(Rank rank, std::uint32_t step, Rank index) const {
    return slot(rank, step) + static_cast<std::size_t>(index) * entry_bytes_;
  }

 private:
  static constexpr std::size_t kPostBytes = sizeof(Post) + kPayloadBytes;

  static std::size_t post_index(Rank rank, std::uint32_t round) {
    return kPosts * static_cast<std::size_t>(rank) + round % kPosts;
  }

  transport::SharedMemory memory_;
  std::size_t entry_bytes_;
  std::size_t slot_bytes_;
  Counters* counters_;
  std::byte* posts_;
  std::byte* slots_;
};

}  // namespace gradring::collectives
