// The shared segment of flat.h: who writes where. Pure layout. Every pointer it hands out lies
// inside the segment whatever another process wrote into it: of all that is read from the segment
// two words take part in computing one, each as a yes or no, and once. Used by the thread that
// drives a Flat.
//   layout     what the rank that made the segment takes the host for
//   counters   per rank: how far it is in long operations
//   posts      kPosts per rank, used in turn: what it calls, and the payload of the shortest
//   payloads   some per rank, used in turn: the payload of other short operations
//   slots      kSlots per rank, used in turn: a long operation's payload, one entry per rank
// What takes only a part of such a place takes another part of it the next time around: a line that
// a reader has in its core's own cache takes the writer four times as long as one that has left it
// (docs/decisions/0016-slots-are-longer-than-a-cache.md). But for cached_slot(), and for payloads
// that are not spread, for processors with which it is the other way round
// (docs/decisions/0022-a-little-that-stays-in-the-caches.md).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/call.h"
#include "transport/links/peer_memory.h"
#include "transport/links/shared_memory.h"

namespace gradring::collectives {

inline constexpr std::size_t kLineBytes = 64;

// Written by one rank, awaited by others. Counts up for ever, modulo 2^32.
struct Word {
  std::atomic<std::uint32_t> value;
  // In the kernel until `value` changes: see transport/membership/idle.h.
  std::atomic<std::uint32_t> sleepers;

  // Pairs with the writer's store: what was written before it can be read now.
  bool has_reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
};

struct alignas(kLineBytes) Counter : Word {};

struct Counters {
  Counter staged;     // Steps of which this rank's slots hold its part.
  Counter reduced;    // Steps of which it has written its result.
  Counter consumed;   // Steps of which it reads nothing any more.
  Counter gone;       // 1: it left, after its last write.
  Counter unread;     // Of flat_direct.h: the last step of which it could not read all.
  Counter withdrawn;  // 1: nobody is to read its vector any more.
  alignas(kLineBytes) transport::MemoryCard card;
};

// A cache line with room for a few elements behind the call: the shortest operations cost one
// line's way from core to core. Lines of its own for some more.
struct alignas(kLineBytes) Post {
  Word round;
  std::uint64_t seq;
  Call call;
  std::array<std::byte, 24> few;
  std::array<std::byte, 448> some;
};
static_assert(sizeof(Post) == 8 * kLineBytes);

// What a long operation's post carries.
struct LongPost {
  // That the next such operation is to go: flat_ways.h. Of a root that may be ahead: that this one
  // goes.
  std::uint64_t way = 0;
  std::array<std::byte, 16> about{};  // Where the rank's input lies, as readers of it need to know.
};
static_assert(sizeof(LongPost) == sizeof(Post::few));

// What the ranks go by is what one of them found, lest they differ.
struct alignas(kLineBytes) FlatLayout {
  std::uint32_t shares_processors = 0;    // There are more ranks than processors.
  std::uint32_t core_lines_are_slow = 1;  // base/processor.h: payloads are spread.
};

class FlatMemory {
 public:
  // How many steps of a long operation a rank may be ahead of those who read what it writes.
  static constexpr std::uint32_t kSlots = 8;
  // How far a rank that waits for nobody (a broadcast's root) may be ahead of the others: where
  // ranks share cores, the fewer changes from one to the other the farther.
  static constexpr std::uint32_t kPosts = 32;
  // The same with payloads, where each rank has a processor for itself.
  static constexpr std::uint32_t kPayloads = 8;
  static constexpr std::size_t kPayloadBytes = 32 * 1024;
  // From here on they may be spread over all places: shorter ones lie in few, which stay in a
  // cache.
  static constexpr std::size_t kSpreadBytes = 4096;

  // What takes so little of each slot, always in the same place, stays in a second-level cache: all
  // slots of a rank are half a MiB then.
  static constexpr std::size_t kCachedBytes = 64 * 1024;

  static std::size_t bytes(Rank ranks);
  // By the rank that made the segment, before any other has it.
  static void lay_out(const transport::SharedMemory& memory, const FlatLayout& layout);

  FlatMemory(transport::SharedMemory memory, Rank ranks);

  bool shares_processors() const { return shares_processors_; }
  // Whether payloads of so many bytes lie in all places in turn.
  bool spreads(std::size_t bytes) const { return spreads_ && bytes >= kSpreadBytes; }

  // A multiple of kLineBytes, so that no element is cut in two.
  std::size_t entry_bytes() const { return entry_bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

  // How many slots a step takes at once where all ranks go step by step, as everybody reads from
  // everybody: then many short steps are only more waits. Of 1, 2, 4: as few as hold an entry of
  // `bytes`, while one is no longer than 256 KiB.
  std::uint32_t slots_at_once(std::size_t bytes) const;

  Counters& counters(Rank rank) const { return counters_[rank]; }
  transport::MemoryCard& card(Rank rank) const { return counters_[rank].card; }
  Post& post(Rank rank, std::uint32_t round) const {
    return posts_[kPosts * static_cast<std::size_t>(rank) + round % kPosts];
  }
  // Where the payload of `bytes` of a rank's operation lies, at most kPayloadBytes.
  std::byte* payload(Rank rank, std::uint32_t round, std::size_t bytes) const {
    Post& at = post(rank, round);
    if (bytes <= at.few.size()) return at.few.data();
    if (bytes <= at.some.size()) return at.some.data();
    std::byte* const own = payloads_ + static_cast<std::size_t>(rank) * places_ * kPayloadBytes;
    if (spreads(bytes))
      return own + (round & (places_ - 1)) * kPayloadBytes +
             shift(kPayloadBytes, bytes, round / places_);
    const std::uint32_t place = round & (window_ - 1);
    return own + place * kPayloadBytes + stagger(bytes, place / 2);
  }
  LongPost long_post(Rank rank, std::uint32_t round) const {
    LongPost long_post;
    std::memcpy(&long_post, payload(rank, round, sizeof long_post), sizeof long_post);
    return long_post;
  }
  // After how many operations what a payload of `bytes` takes may be written again.
  std::uint32_t turn_of(std::size_t bytes) const {
    return bytes <= sizeof(Post::some) ? kPosts : window_;
  }
  // Of one rank, at most as long as the slots that the step takes at once.
  std::byte* slot(Rank rank, std::uint32_t step, std::size_t bytes) const {
    return begin_of_slot(rank, step) + shift(slot_bytes_, bytes, step / kSlots);
  }
  // The same for at most kCachedBytes that stay in the caches.
  std::byte* cached_slot(Rank rank, std::uint32_t step) const { return begin_of_slot(rank, step); }
  // All ranks' slots, before the first long operation, so that it costs as much as later ones: ways
  // are compared by then (flat_ways.h).
  void take_slots() const {
    memory_.take_pages(slots_, memory_.bytes() - static_cast<std::size_t>(slots_ - memory_.data()));
  }
  // The same before the first short operation that is spread.
  void take_payloads() const {
    memory_.take_pages(payloads_, static_cast<std::size_t>(slots_ - payloads_));
  }
  // How the slots of a step are cut: it is a multiple of `slots`, which it takes at once, and each
  // entry has `bytes`.
  struct Cut {
    std::uint32_t slots;
    std::size_t bytes;
  };
  std::byte* entry(Rank rank, std::uint32_t step, Rank index, const Cut& cut) const {
    const std::size_t room = entry_bytes_ * cut.slots;
    return begin_of_slot(rank, step) + static_cast<std::size_t>(index) * room +
           shift(room, cut.bytes, step / kSlots);
  }

 private:
  std::byte* begin_of_slot(Rank rank, std::uint32_t step) const {
    return slots_ + (static_cast<std::size_t>(rank) * kSlots + step % kSlots) * slot_bytes_;
  }
  // Where in their places those lie that are not spread: not all at the same distance, or they
  // would fight for a few sets of a cache. In eighths and halves, as a division takes longer than a
  // line.
  static std::size_t stagger(std::size_t bytes, std::uint32_t nth) {
    if (bytes <= kPayloadBytes / 8) return nth % 8 * (kPayloadBytes / 8);
    return bytes <= kPayloadBytes / 2 ? nth % 2 * (kPayloadBytes / 2) : 0;
  }
  static constexpr std::size_t kOne = 1;
  // Where in its room something of `bytes` lies, the nth time around. 0 if it is longer.
  static std::size_t shift(std::size_t room, std::size_t bytes, std::uint32_t nth) {
    const std::size_t taken = std::max((bytes + kLineBytes - 1) / kLineBytes, kOne) * kLineBytes;
    return nth % std::max(room / taken, kOne) * taken;
  }

  transport::SharedMemory memory_;
  std::size_t entry_bytes_;
  std::size_t slot_bytes_;
  bool shares_processors_;
  bool spreads_;
  std::uint32_t places_;  // For payloads, of each rank: a power of two, of 8 and more.
  std::uint32_t
      window_;  // Payloads of so many operations may be in use; the same, at most places_.
  Counters* counters_;
  Post* posts_;
  std::byte* payloads_;
  std::byte* slots_;
};

}  // namespace gradring::collectives
