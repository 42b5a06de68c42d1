// Engine: carries out one collective after another for a communicator: picks the algorithm, keeps
// plans and scratch memory, drives runs over links or the shared segment. Used by one thread at a
// time, under the communicator's drive lock.
#pragma once

#include <cstdlib>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "collectives/engine/hierarchy.h"
#include "collectives/engine/run.h"
#include "collectives/flat/flat.h"
#include "collectives/flat/shared_array.h"
#include "collectives/plan/choose.h"
#include "collectives/plan/operation.h"
#include "transport/membership/idle.h"
#include "transport/mesh.h"
#include "transport/world.h"

namespace gradring::collectives {

class Engine {
 public:
  Engine(std::shared_ptr<transport::World> world, std::shared_ptr<transport::Group> group,
         Rank rank);

  // Fills in rank, world size and order, and decides how. Pure, but for the layout of hosts.
  Request complete(const Operation& operation) const;
  Algorithm decide(const Request& request, Algorithm wanted) const;

  bool has_hierarchy() const { return hierarchy_ != nullptr; }

  // Runs it to the end. Throws what PlanRun, Flat and Idle throw.
  void execute(const Operation& asked, const Call& call, std::uint64_t seq, transport::Idle& idle);

  // A barrier: who gets through it has heard, hop by hop, of equal calls from all.
  void agree(const Call& call, std::uint64_t seq, transport::Idle& idle);

  // Whether this rank could have its part of such memory; also where ranks share none.
  bool can_share(std::size_t bytes) const;
  // Memory that all ranks of the group can reach, a part of `bytes` for each; collective, and after
  // an operation that has made all ranks sure of each other. nullptr where they share none.
  std::shared_ptr<SharedArray> share_memory(std::size_t bytes, transport::Idle& idle);

  // After a failed execute: what it was waiting for, "" if for nothing: "; waiting for rank 2
  // (...): 65536 of 262144 bytes received".
  const std::string& waited_for() const { return waited_for_; }
  // It waits for something beside the links.
  void note_waited_for(std::string what) { waited_for_ = std::move(what); }
  void leave();

 private:
  struct CachedPlan {
    Request key;
    Algorithm algorithm;
    Plan plan;
  };
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  const Plan& plan_for(const Request& request, Algorithm algorithm);
  void run_plan(const Plan& plan, const Operation& operation, const Call& call, std::uint64_t seq,
                transport::Idle& idle);
  void run_hierarchy(const Operation& operation, const Call& call, std::uint64_t seq,
                     transport::Idle& idle);
  void run_flat(const Request& request, const Operation& operation, const Call& call,
                std::uint64_t seq, transport::Idle& idle);
  using Prepare = std::function<void(const transport::SharedMemory&)>;
  transport::SharedMemory meet_segment(std::size_t bytes, transport::Idle& idle,
                                       const Prepare& prepare = {});
  void run_local(const Request& request, const Operation& operation) const;
  std::byte* scratch(std::uint64_t bytes);
  void note_progress(const PlanRun& run, const Call& call);
  void throw_if_in_vain(const PlanRun& run) const;
  void record_progress(const PlanRun& run, const PlanRun::Traffic& before,
                       transport::Idle& idle) const;
  std::string describe(Rank group_rank) const;

  std::shared_ptr<transport::World> world_;
  std::shared_ptr<transport::Group> group_;
  Rank rank_;
  bool has_shared_memory_;  // With every member.
  transport::Mesh mesh_;
  std::unique_ptr<Flat> flat_;  // Made by the first operation that uses it.
  SharedArrays shared_arrays_;
  LinkCosts costs_;  // Of links between its members; the same on all of them, as is the next.
  std::uint16_t pieces_on_way_ = 0;
  std::vector<double> link_rates_;  // By rank; empty: all alike, as far as is known.
  bool spans_hosts_ = false;
  std::unique_ptr<Hierarchy> hierarchy_;  // None where it would not help.
  std::list<CachedPlan> plans_;
  std::unique_ptr<std::byte[], Free> scratch_;
  std::uint64_t scratch_bytes_ = 0;
  std::vector<transport::Interest> interests_;
  std::string waited_for_;
};

}  // namespace gradring::collectives
