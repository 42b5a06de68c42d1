#include "transport/mesh.h"

#include "base/error.h"

namespace gradring::transport {

Mesh::Mesh(std::shared_ptr<World> world, std::shared_ptr<Group> group, std::uint8_t lane)
    : world_(std::move(world)),
      group_(std::move(group)),
      lane_(lane),
      links_(group_->members.size()) {}

Link* Mesh::link(Rank peer) {
  auto& slot = links_[static_cast<std::size_t>(peer)];
  if (slot) [[likely]]
    return slot.get();
  const Rank theirs = group_->members[static_cast<std::size_t>(peer)];
  if (world_->rank() < theirs) {
    slot = world_->connect(*group_, theirs, lane_, timeout_);
    return slot.get();
  }
  const auto left = group_->left(theirs);  // Asked first: its connections came before its goodbye.
  if (Link* link = accepted(peer)) return link;
  // It left before it ever connected to us, so it never will.
  if (left) throw PeerLost(theirs, *left);
  return nullptr;
}

Link* Mesh::accepted(Rank peer) {
  auto& slot = links_[static_cast<std::size_t>(peer)];
  const Rank theirs = group_->members[static_cast<std::size_t>(peer)];
  if (slot || world_->rank() < theirs) return slot.get();
  const Purpose purpose =
      world_->shares_memory(world_->rank(), theirs) ? Purpose::kSharedLink : Purpose::kLink;
  auto arrivals = group_->take(purpose, lane_, theirs, world_->streams_to(theirs));
  if (!arrivals.empty()) slot = world_->accept(*group_, std::move(arrivals), timeout_);
  return slot.get();
}

void Mesh::hang_up() {
  for (const auto& link : links_)
    if (link) link->hang_up();
}

}  // namespace gradring::transport
