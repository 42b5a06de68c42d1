// FlatSide: one rank's side of the segment of flat.h: its place in it, and how it tells the others
// how far it is and waits for them. Driven by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "collectives/flat/flat_memory.h"
#include "kernels/reduce.h"
#include "transport/membership/idle.h"

namespace gradring::collectives {

class FlatSide {
 public:
  // `ranks`: who has the memory. Outlives this. An operation's Idle may be another group's, of
  // which this one is a part.
  FlatSide(transport::SharedMemory memory, const transport::Group& ranks, Rank rank);

  const FlatMemory memory;
  const Rank rank;
  const Rank ranks;
  std::uint32_t steps = 0;  // Of all long operations so far.
  // In this operation: into slots; and whether it goes through little of them (flat_ways.h).
  kernels::Copy* stage = kernels::copy_into_caches();
  bool stays_cached = false;

  Counters& mine() const { return memory.counters(rank); }
  Rank in_world(Rank other) const { return group_.members[static_cast<std::size_t>(other)]; }
  Rank next(Rank other) const { return other + 1 == ranks ? 0 : other + 1; }

  // Everything this thread wrote before can be read by who sees the new value.
  static void publish(Word& word, std::uint32_t value) {
    word.value.store(value, std::memory_order_seq_cst);  // Pairs with Idle::on_word's count.
    wake_sleepers(word);
  }
  static void wake_sleepers(Word& word) {
    if (word.sleepers.load(std::memory_order_seq_cst) != 0) transport::wake_word(word.value);
  }

  // Waits until `word`, which `peer` writes, has reached `target`. Throws PeerLost if the peer left
  // before, and whatever `idle` throws.
  void wait(Rank peer, Word& word, std::uint32_t target, transport::Idle& idle) {
    if (!word.has_reached(target)) wait_longer(peer, word, target, idle);
  }
  // The same, but returns after a little while too.
  void wait_a_little(Rank peer, Word& word, std::uint32_t target, transport::Idle& idle);

  // The end of a long operation: also moves the counters on that it did not need, lest they fall
  // behind by half of what a counter can count.
  void finish(std::uint32_t all_steps);

  // Of the group; -1: none. Callable from any thread.
  Rank awaited() const { return awaited_.load(std::memory_order_relaxed); }
  void leave();

 private:
  void wait_longer(Rank peer, Word& word, std::uint32_t target, transport::Idle& idle);
  void throw_if_gone(Rank peer, const Word& word, std::uint32_t target) const;

  const transport::Group& group_;
  std::atomic<Rank> awaited_{-1};
};

}  // namespace gradring::collectives
