// Level: some ranks of a communicator, for collectives that are steps of an operation of all of
// them: a host's ranks, or one rank of every host. It has links and plans of its own and no order,
// deadline or end: those are the operation's. Used by one thread at a time, under the lock of the
// communicator it belongs to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/plan/operation.h"
#include "transport/membership/idle.h"
#include "transport/world.h"

namespace gradring::collectives {

class Engine;

class Level {
 public:
  // `ranks`: of `parent`, with this one among them, in the same order on each of them. `salt`:
  // another one for each level of `parent` that this rank is in.
  Level(std::shared_ptr<transport::World> world, const transport::Group& parent, std::uint64_t nth,
        std::uint64_t salt, std::vector<Rank> ranks);
  ~Level();
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  Rank ranks() const { return static_cast<Rank>(parent_ranks_.size()); }
  // Fills in rank, world size and order.
  Request complete(const Operation& operation) const;
  // A part of the parent's operation that `call` and `seq` name; roots are ranks of the level.
  // Throws as Engine::execute; ranks in what it throws are the parent's.
  void execute(const Operation& operation, const Call& call, std::uint64_t seq,
               transport::Idle& idle);
  // What execute() was waiting for when it threw.
  const std::string& waited_for() const;
  void leave();

 private:
  std::shared_ptr<transport::World> world_;
  std::vector<Rank> parent_ranks_;
  std::shared_ptr<transport::Group> group_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace gradring::collectives
