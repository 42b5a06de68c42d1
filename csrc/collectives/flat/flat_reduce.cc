#include "collectives/flat/flat_reduce.h"

#include <algorithm>

namespace gradring::collectives {
namespace {

// What is reduced before it is copied to its second place: both fit into a first-level cache.
constexpr std::size_t kCopiedBlockBytes = 16 * 1024;

}  // namespace

FlatReduce::FlatReduce(FlatSide& side, FlatShape& shape, const Request& request,
                       const std::byte* input, std::byte* output)
    : side_(side),
      shape_(shape),
      input_(input),
      output_(output),
      scatters_(request.op == OpKind::kReduceScatter),
      takes_(request.op == OpKind::kAllReduce ||
             (request.op == OpKind::kReduce && request.rank == request.root)),
      copy_out_(kernels::copy_for(input == output ? 0 : shape.bytes(),
                                  static_cast<std::size_t>(side.ranks))),
      slots_(scatters_ ? 1 : side.memory.slots_at_once(shape.largest_part_bytes())),
      window_(FlatMemory::kSlots / slots_),
      base_((side.steps + slots_ - 1) / slots_ * slots_) {
  const std::size_t largest = shape.largest_part_bytes();
  const std::size_t entry = side.memory.entry_bytes() * slots_;
  steps_ = (largest + entry - 1) / entry;
  const std::size_t even = (largest + steps_ - 1) / steps_;
  piece_bytes_ = (even + kLineBytes - 1) / kLineBytes * kLineBytes;
  cut_ = {slots_, scatters_ ? piece_bytes_ : entry};
}

void FlatReduce::begin(transport::Idle& idle) {
  for (Rank peer; (peer = blocks_stage()) >= 0;)
    side_.wait(peer, side_.memory.counters(peer).consumed, counted(1) - FlatMemory::kSlots, idle);
  stage();
}

void FlatReduce::finish(transport::Idle& idle) {
  while (taken_ < steps_) {
    if (taken_ < reduced_ && blocks_take() < 0) {
      take();
    } else if (reduced_ < staged_ && blocks_reduce() < 0) {
      reduce();
    } else if (staged_ < steps_ && staged_ < taken_ + window_ && blocks_stage() < 0) {
      stage();
    } else {
      wait(idle);
      continue;
    }
    idle.reset();
  }
  side_.finish(counted(steps_));
}

// For what the oldest unfinished step lacks. Whoever is waited for is not waiting for a later step
// of ours, so no circle of waits can close.
void FlatReduce::wait(transport::Idle& idle) {
  if (taken_ < reduced_) {
    const Rank peer = blocks_take();
    if (peer >= 0)
      side_.wait_a_little(peer, side_.memory.counters(peer).reduced, counted(taken_ + 1), idle);
  } else if (reduced_ < staged_) {
    const Rank peer = blocks_reduce();
    if (peer >= 0)
      side_.wait_a_little(peer, side_.memory.counters(peer).staged, counted(reduced_ + 1), idle);
  } else {
    const Rank peer = blocks_stage();
    if (peer >= 0)
      side_.wait_a_little(peer, side_.memory.counters(peer).consumed,
                          counted(staged_ + 1) - FlatMemory::kSlots, idle);
  }
}

Rank FlatReduce::first_behind(Counter Counters::* counter, std::uint64_t steps) const {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    if (!(side_.memory.counters(peer).*counter).has_reached(counted(steps))) return peer;
  return -1;
}

Rank FlatReduce::blocks_stage() const {
  return first_behind(&Counters::consumed, staged_ + 1 - window_);
}
Rank FlatReduce::blocks_reduce() const {
  return first_behind(&Counters::staged, reduced_ + 1);
}
Rank FlatReduce::blocks_take() const {
  return takes_ ? first_behind(&Counters::reduced, taken_ + 1) : -1;
}

FlatPart FlatReduce::piece(Rank owner, std::uint64_t step) const {
  const FlatPart part = shape_.part(owner);
  const std::size_t begin = std::min(part.bytes, step * piece_bytes_);
  return {part.begin + begin, std::min(part.bytes - begin, piece_bytes_)};
}

// A result replaces one of the operands it was made from: half the memory to keep in the caches.
std::byte* FlatReduce::result(Rank owner, std::uint64_t step) const {
  return side_.memory.entry(side_.next(owner), counted(step), owner, cut_);
}

void FlatReduce::stage() {
  for (Rank owner = side_.next(side_.rank); owner != side_.rank; owner = side_.next(owner)) {
    const FlatPart from = piece(owner, staged_);
    if (from.bytes != 0)
      side_.stage(side_.memory.entry(side_.rank, counted(staged_), owner, cut_),
                  input_ + from.begin, from.bytes);
  }
  ++staged_;
  FlatSide::publish(side_.mine().staged, counted(staged_));
}

void FlatReduce::reduce() {
  const FlatPart own = piece(side_.rank, reduced_);
  std::byte* shared = result(side_.rank, reduced_);
  for (std::size_t at = 0; at < own.bytes; at += kCopiedBlockBytes) {
    const std::size_t bytes = std::min(kCopiedBlockBytes, own.bytes - at);
    const auto operand = [&](Rank rank) -> const std::byte* {
      if (rank == side_.rank) return input_ + own.begin + at;
      return side_.memory.entry(rank, counted(reduced_), side_.rank, cut_) + at;
    };
    if (scatters_) {
      const std::size_t begin = own.begin - shape_.part(side_.rank).begin;
      shape_.reduce(output_ + begin + at, bytes, side_.rank, operand);
    } else {
      shape_.reduce(shared + at, bytes, side_.rank, operand);
      if (takes_) copy_out_(output_ + own.begin + at, shared + at, bytes);
    }
  }
  ++reduced_;
  if (!scatters_) FlatSide::publish(side_.mine().reduced, counted(reduced_));
  if (!takes_) {
    taken_ = reduced_;
    FlatSide::publish(side_.mine().consumed, counted(taken_));
  }
}

void FlatReduce::take() {
  for (Rank owner = side_.next(side_.rank); owner != side_.rank; owner = side_.next(owner)) {
    const FlatPart to = piece(owner, taken_);
    copy_out_(output_ + to.begin, result(owner, taken_), to.bytes);
  }
  ++taken_;
  FlatSide::publish(side_.mine().consumed, counted(taken_));
}

}  // namespace gradring::collectives
