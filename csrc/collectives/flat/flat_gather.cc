#include "collectives/flat/flat_gather.h"

#include <algorithm>

namespace gradring::collectives {

FlatGather::FlatGather(FlatSide& side, const FlatShape& shape, const Request& request,
                       const std::byte* input, std::byte* output)
    : side_(side),
      shape_(shape),
      input_(input),
      output_(output),
      root_(request.op == OpKind::kBroadcast ? request.root : -1),
      copy_own_(kernels::copy_for(shape.bytes(), static_cast<std::size_t>(side.ranks))),
      copy_out_(copy_out()),
      slots_(root_ < 0 && !side.stays_cached
                 ? side.memory.slots_at_once(shape.largest_part_bytes() /
                                             static_cast<std::size_t>(side.ranks))
                 : 1),
      base_((side.steps + slots_ - 1) / slots_ * slots_) {
  const std::size_t largest = root_ < 0 ? shape.largest_part_bytes() : shape.bytes();
  const std::size_t most = most_bytes(largest);
  steps_ = (largest + most - 1) / most;
  const std::size_t even = (largest + steps_ - 1) / steps_;
  piece_bytes_ = (even + kLineBytes - 1) / kLineBytes * kLineBytes;
}

kernels::Copy* FlatGather::copy_out() const {
  if (side_.stays_cached) return kernels::copy_between_caches();
  if (root_ < 0) return copy_own_;
  return kernels::copy_from_core_for(shape_.bytes(), static_cast<std::size_t>(side_.ranks));
}

// Of a step. Two at least of a broadcast that stays cached: they are staged and taken at once.
std::size_t FlatGather::most_bytes(std::size_t largest) const {
  if (!side_.stays_cached) return side_.memory.slot_bytes() * slots_;
  const std::size_t half = (largest / 2 + kLineBytes) / kLineBytes * kLineBytes;
  const std::size_t most = std::min(FlatMemory::kCachedBytes, side_.memory.slot_bytes());
  return root_ < 0 ? most : std::min(most, half);
}

std::byte* FlatGather::slot(Rank from, std::uint64_t step) const {
  if (side_.stays_cached) return side_.memory.cached_slot(from, counted(step));
  return side_.memory.slot(from, counted(step), piece_bytes_);
}

void FlatGather::begin(transport::Idle& idle) {
  if (!has_part(side_.rank)) {
    staged_ = steps_;
    return;
  }
  for (Rank peer; (peer = blocks_stage()) >= 0;)
    side_.wait(peer, side_.memory.counters(peer).consumed, counted(1) - FlatMemory::kSlots, idle);
  stage();
}

void FlatGather::finish(transport::Idle& idle) {
  while (taken_ < steps_ || staged_ < steps_) {
    const Rank blocks_taking = taken_ < steps_ ? blocks_take() : -1;
    if (taken_ < steps_ && taken_ < staged_ && blocks_taking < 0) {
      take();
    } else if (staged_ < steps_ && blocks_stage() < 0) {
      stage();
    } else {
      wait(blocks_taking, idle);
      continue;
    }
    idle.reset();
  }
  side_.finish(counted(steps_));
}

// `blocks_taking` may have staged its part meanwhile: then this returns at once.
void FlatGather::wait(Rank blocks_taking, transport::Idle& idle) {
  if (taken_ < staged_) {
    side_.wait_a_little(blocks_taking, side_.memory.counters(blocks_taking).staged,
                        counted(taken_ + 1), idle);
  } else if (const Rank peer = blocks_stage(); peer >= 0) {
    side_.wait_a_little(peer, side_.memory.counters(peer).consumed,
                        counted(staged_ + 1) - FlatMemory::kSlots, idle);
  }
}

Rank FlatGather::blocks_stage() const {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    if (!side_.memory.counters(peer).consumed.has_reached(counted(staged_ + 1) -
                                                          FlatMemory::kSlots))
      return peer;
  return -1;
}

Rank FlatGather::blocks_take() const {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    if (has_part(peer) && !side_.memory.counters(peer).staged.has_reached(counted(taken_ + 1)))
      return peer;
  return -1;
}

FlatPart FlatGather::piece(Rank from, std::uint64_t step) const {
  const FlatPart part = root_ < 0 ? shape_.part(from) : FlatPart{0, shape_.bytes()};
  const std::size_t begin = std::min(part.bytes, step * piece_bytes_);
  return {part.begin + begin, std::min(part.bytes - begin, piece_bytes_)};
}

void FlatGather::stage() {
  const FlatPart from = piece(side_.rank, staged_);
  const std::size_t part_begin = root_ < 0 ? shape_.part(side_.rank).begin : 0;
  const std::byte* const source = input_ + (from.begin - part_begin);
  side_.stage(slot(side_.rank, staged_), source, from.bytes);
  ++staged_;
  FlatSide::publish(side_.mine().staged, counted(staged_));
  if (source != output_ + from.begin) copy_own_(output_ + from.begin, source, from.bytes);
}

void FlatGather::take() {
  for (Rank from = side_.next(side_.rank); from != side_.rank; from = side_.next(from)) {
    const FlatPart to = piece(from, taken_);
    if (has_part(from)) copy_out_(output_ + to.begin, slot(from, taken_), to.bytes);
  }
  ++taken_;
  FlatSide::publish(side_.mine().consumed, counted(taken_));
}

}  // namespace gradring::collectives
