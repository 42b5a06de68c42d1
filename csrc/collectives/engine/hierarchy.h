// Hierarchy: all_reduce and broadcast where several hosts have several ranks each. Inside a host
// through shared memory to its first rank, between the hosts' first ranks over the network, and
// back: the network carries 2 S (h-1)/h bytes a host instead of a flat ring's 2 S (n-1)/n (Horovod
// and Open MPI's han do the same). The order of additions is its own: each host's ranks first, in
// the order of Order::kRing among them, then the hosts. Used by one Engine, under the same lock.
#pragma once

#include <memory>
#include <vector>

#include "collectives/engine/level.h"

namespace gradring::collectives {

class Hierarchy {
 public:
  // Nothing if it would not help: one host, or one rank on every host, or shared memory is not
  // allowed.
  static std::unique_ptr<Hierarchy> make(const std::shared_ptr<transport::World>& world,
                                         const transport::Group& group, Rank rank);
  ~Hierarchy();

  static bool supports(const Request& request);
  // One segment is reduced, exchanged and spread before the next begins: it bounds how long the
  // hosts wait for each other's shared memory, and is large enough to keep the network busy.
  static constexpr std::uint64_t kSegmentBytes = std::uint64_t{16} << 20;
  void execute(const Operation& operation, const Call& call, std::uint64_t seq,
               transport::Idle& idle);
  // What execute() was waiting for when it threw.
  const std::string& waited_for() const { return waited_for_; }
  void leave();

 private:
  Hierarchy(std::shared_ptr<transport::World> world, const transport::Group& group, Rank rank);
  void all_reduce(const Operation& segment, const Call& call, std::uint64_t seq,
                  transport::Idle& idle);
  void broadcast(const Operation& operation, const Call& call, std::uint64_t seq,
                 transport::Idle& idle);
  void run(Level& level, Operation operation, const Call& call, std::uint64_t seq,
           transport::Idle& idle);

  std::shared_ptr<transport::World> world_;
  Rank ranks_;
  std::vector<Rank> host_of_;   // By group rank: the index of its host.
  std::vector<Rank> local_of_;  // By group rank: its rank within the host.
  Rank host_;
  Rank local_rank_;
  std::unique_ptr<Level> local_;    // This host's ranks; none where it has only one.
  std::unique_ptr<Level> leaders_;  // Every host's first rank; on those only.
  std::string waited_for_;
};

}  // namespace gradring::collectives
