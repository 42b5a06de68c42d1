#include "collectives/engine/level.h"

#include <algorithm>

#include "collectives/engine/engine.h"

namespace gradring::collectives {
namespace {

std::vector<Rank> members_of(const transport::Group& parent, const std::vector<Rank>& ranks) {
  std::vector<Rank> members;
  for (const Rank rank : ranks) members.push_back(parent.members[static_cast<std::size_t>(rank)]);
  return members;
}

}  // namespace

Level::Level(std::shared_ptr<transport::World> world, const transport::Group& parent,
             std::uint64_t nth, std::uint64_t salt, std::vector<Rank> ranks)
    : world_(std::move(world)), parent_ranks_(std::move(ranks)) {
  const std::vector<Rank> members = members_of(parent, parent_ranks_);
  const auto at = std::find(members.begin(), members.end(), world_->rank()) - members.begin();
  group_ = world_->make_group(transport::derive_id(parent.id, nth, salt), members, parent.made_by);
  engine_ = std::make_unique<Engine>(world_, group_, static_cast<Rank>(at));
}

Level::~Level() = default;

Request Level::complete(const Operation& operation) const {
  return engine_->complete(operation);
}

void Level::execute(const Operation& operation, const Call& call, std::uint64_t seq,
                    transport::Idle& idle) {
  const auto in_parent = [&](Rank rank) {
    return rank < 0 ? rank : parent_ranks_[static_cast<std::size_t>(rank)];
  };
  try {
    engine_->execute(operation, call, seq, idle);
  } catch (LinkClosed& link) {
    link.peer = in_parent(link.peer);
    throw;
  } catch (const CallsDiffer& calls) {
    throw CallsDiffer(in_parent(calls.peer), calls.mine, calls.theirs, calls.advice);
  }
}

const std::string& Level::waited_for() const {
  return engine_->waited_for();
}

void Level::leave() {
  engine_->leave();
  world_->drop_group(group_->id);
}

}  // namespace gradring::collectives
