#include "base/error.h"
#include "sim/collectives/worker.h"

namespace gradring::sim {
namespace {

constexpr Millis kConnectTime{10'000};  // As in transport/world.cc.

}  // namespace

Wiring::Wiring(Rank rank, std::shared_ptr<transport::Group> group, const Scenario& scenario,
               Network& network, Monitor& monitor)
    : rank_(rank),
      group_(std::move(group)),
      scenario_(scenario),
      network_(network),
      monitor_(monitor),
      slots_(group_->members.size()) {}

transport::Link* Wiring::link(Rank peer) {
  Slot& slot = slots_[static_cast<std::size_t>(peer)];
  if (slot.link) return slot.link.get();
  const Rank theirs = group_->members[static_cast<std::size_t>(peer)];
  if (rank_ > theirs) {
    slot.link = monitor_.take(group_->id, theirs);
    if (slot.link) return slot.link.get();
    if (const auto text = group_->left(theirs)) throw PeerLost(theirs, *text);
    return nullptr;
  }
  if (slot.attempt == nullptr)
    slot.attempt =
        network_.connect(rank_, theirs, group_->id, script_for(theirs), scenario_.streams);
  const Attempt::State state = network_.answer(*slot.attempt);
  const bool is_late = network_.now() >= slot.attempt->arrives + kConnectTime;
  if (state == Attempt::State::kWaiting && !is_late) return nullptr;
  if (state == Attempt::State::kConnected) slot.link = std::move(slot.attempt->near);
  network_.give_up(std::exchange(slot.attempt, nullptr));
  if (slot.link) return slot.link.get();
  const auto left = group_->left(theirs);
  throw PeerLost(theirs, left ? *left : str("rank ", theirs, " cannot be reached"));
}

void Wiring::hang_up() {
  for (Slot& slot : slots_) {
    slot.link.reset();
    if (slot.attempt != nullptr) network_.give_up(std::exchange(slot.attempt, nullptr));
  }
}

transport::MemoryScript Wiring::script_for(Rank peer) const {
  transport::MemoryScript script;
  script.capacity_bytes = scenario_.link_bytes;
  if (group_->id != kFirstGroup) return script;
  for (const Fault& fault : scenario_.faults) {
    const bool is_ours = (fault.rank == rank_ && fault.other == peer) ||
                         (fault.rank == peer && fault.other == rank_);
    if (fault.kind == FaultKind::kDropData && is_ours) script.break_at_byte = fault.byte;
  }
  return script;
}

}  // namespace gradring::sim
