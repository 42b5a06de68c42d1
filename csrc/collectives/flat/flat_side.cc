#include "collectives/flat/flat_side.h"

#include <utility>

#include "base/error.h"

namespace gradring::collectives {

FlatSide::FlatSide(transport::SharedMemory segment, const transport::Group& group, Rank own_rank)
    : memory(std::move(segment), static_cast<Rank>(group.members.size())),
      rank(own_rank),
      ranks(static_cast<Rank>(group.members.size())),
      group_(group) {}

void FlatSide::wait_longer(Rank peer, Word& word, std::uint32_t target, transport::Idle& idle) {
  idle.reset();
  while (!word.has_reached(target)) wait_a_little(peer, word, target, idle);
}

void FlatSide::wait_a_little(Rank peer, Word& word, std::uint32_t target, transport::Idle& idle) {
  awaited_.store(peer, std::memory_order_relaxed);
  idle.waits_for(in_world(peer));
  throw_if_gone(peer, word, target);
  const std::uint32_t seen = word.value.load(std::memory_order_relaxed);
  if (!word.has_reached(target)) idle.on_word(word.value, seen, word.sleepers);
  awaited_.store(-1, std::memory_order_relaxed);
}

void FlatSide::throw_if_gone(Rank peer, const Word& word, std::uint32_t target) const {
  const Rank world_rank = in_world(peer);
  // Its flag is missing where it left before it ever had this memory.
  const auto goodbye = group_.left(world_rank);
  const bool is_gone = memory.counters(peer).gone.value.load(std::memory_order_acquire) != 0;
  // It wrote nothing after either: what is not there now never will be.
  if ((!goodbye && !is_gone) || word.has_reached(target)) return;
  throw PeerLost(
      world_rank,
      goodbye ? *goodbye : str("rank ", world_rank, " has left: it closed this communicator"));
}

void FlatSide::finish(std::uint32_t all_steps) {
  steps = all_steps;
  mine().staged.value.store(steps, std::memory_order_release);
  mine().reduced.value.store(steps, std::memory_order_release);
}

void FlatSide::leave() {
  publish(mine().gone, 1);
  Counters& counters = mine();
  for (Word* word : {static_cast<Word*>(&counters.staged), static_cast<Word*>(&counters.reduced),
                     static_cast<Word*>(&counters.consumed)})
    wake_sleepers(*word);
  for (std::uint32_t round = 0; round < FlatMemory::kPosts; ++round)
    wake_sleepers(memory.post(rank, round).round);
}

}  // namespace gradring::collectives
