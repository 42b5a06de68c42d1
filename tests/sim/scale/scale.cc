#include "sim/scale/scale.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "collectives/engine/run.h"
#include "collectives/plan/operation.h"

namespace gradring::sim {
namespace {

using collectives::Action;
using collectives::ActionKind;
using collectives::Plan;
using collectives::PlanRun;
using collectives::Request;

constexpr std::uint64_t kSeq = 1;

bool is_local(const Action& action) {
  return action.kind == ActionKind::kReduce || action.kind == ActionKind::kCopy;
}

// Every reduce becomes a copy onto itself, as which every copy already counts: a run does all that
// it did, in the same order, but touches no memory.
void make_weightless(Plan& plan) {
  for (Action& action : plan.actions) {
    if (!is_local(action)) continue;
    action.kind = ActionKind::kCopy;
    action.source_count = 1;
    plan.sources[action.first_source] = action.at;
  }
}

// Addresses for runs whose memory does not matter. Hardly any of it is ever touched.
class Nowhere {
 public:
  explicit Nowhere(std::uint64_t bytes)
      : bytes_(bytes),
        at_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    GRADRING_ASSERT(at_ != MAP_FAILED);
  }
  ~Nowhere() { ::munmap(at_, bytes_); }
  Nowhere(const Nowhere&) = delete;
  Nowhere& operator=(const Nowhere&) = delete;
  std::byte* at() const { return static_cast<std::byte*>(at_); }

 private:
  std::uint64_t bytes_;
  void* at_;
};

std::uint64_t memory_of(const Plan& plan) {
  return plan.actions.size() * sizeof(Action) + plan.sources.size() * sizeof(collectives::Slice) +
         plan.dependents.size() * sizeof(std::uint32_t);
}

void keep_most(RankLoad& most, const RankLoad& load) {
  const auto raise = [](std::uint64_t& value, std::uint64_t other) {
    value = std::max(value, other);
  };
  raise(most.sent_bytes, load.sent_bytes);
  raise(most.sent_messages, load.sent_messages);
  raise(most.peers, load.peers);
  raise(most.plan_bytes, load.plan_bytes);
  raise(most.scratch_bytes, load.scratch_bytes);
  raise(most.actions, load.actions);
}

}  // namespace

Request request_of(const ScaleCase& c, Rank rank) {
  Request request;
  request.op = c.op;
  request.rank = rank;
  request.world_size = c.ranks;
  request.count = c.bytes / item_bytes(request.dtype);
  if (c.op == OpKind::kGather || c.op == OpKind::kScatter)
    request.count /= static_cast<std::uint64_t>(c.ranks);
  request.order =
      c.order ? *c.order : collectives::order_for(c.op, c.ranks, c.bytes, request.dtype);
  return request;
}

std::vector<Plan> plans_of(const ScaleCase& c, Rank rank) {
  return {agreed_plan(request_of(c, rank), c.algorithm)};
}

RankLoad load_of(const std::vector<Plan>& plans) {
  RankLoad load;
  std::set<Rank> peers;
  for (const Plan& plan : plans) {
    load.plan_bytes += memory_of(plan);
    load.scratch_bytes = std::max(load.scratch_bytes, plan.scratch_bytes);
    load.actions += plan.actions.size();
    for (const Action& action : plan.actions) {
      if (is_local(action)) continue;
      peers.insert(action.peer);
      if (action.kind != ActionKind::kSend) continue;
      load.sent_bytes += action.bytes;
      ++load.sent_messages;
    }
  }
  load.peers = peers.size();
  return load;
}

RankLoad sampled_load(const ScaleCase& c) {
  const auto power = static_cast<Rank>(std::bit_floor(static_cast<std::uint32_t>(c.ranks)));
  RankLoad most;
  for (const Rank rank : {0, 1, power / 2, power - 1, power, c.ranks - 1})
    if (rank < c.ranks) keep_most(most, load_of(plans_of(c, rank)));
  return most;
}

Bound bound_of(const ScaleCase& c, const NetworkModel& model) {
  const auto n = static_cast<std::uint64_t>(c.ranks);
  const std::uint64_t share = c.bytes / n * (n - 1);
  Bound bound;
  bound.hops = static_cast<std::uint64_t>(std::bit_width(n - 1));
  switch (c.op) {
    case OpKind::kAllReduce: bound.sent_bytes = 2 * share; break;
    case OpKind::kBroadcast: bound.sent_bytes = c.bytes; break;
    case OpKind::kBarrier: break;
    default: bound.sent_bytes = share;  // Who gets or gives all, or everybody its part.
  }
  constexpr double kBytesPerUs = 1e3;  // One GB/s.
  bound.us = std::max(static_cast<double>(bound.hops) * model.latency_us,
                      static_cast<double>(bound.sent_bytes) / (model.port_gb_s * kBytesPerUs));
  return bound;
}

// A local action counts with the last of the receives that it waits for.
Labour labour_of(const Plan& plan) {
  Labour labour;
  constexpr std::int64_t kNone = -1;
  std::vector<std::int64_t> last(plan.actions.size(), kNone);
  std::vector<TimedNetwork::Chore*> chores(plan.actions.size());
  std::map<Rank, std::size_t> counts;
  for (const Action& action : plan.actions)
    if (action.kind == ActionKind::kRecv) ++counts[action.peer];
  for (const auto& [peer, count] : counts) labour.by_peer[peer].reserve(count);
  for (std::size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    if (action.kind == ActionKind::kRecv) {
      auto& list = labour.by_peer[action.peer];
      list.push_back({action.bytes, 0, 0});
      chores[i] = &list.back();
      last[i] = static_cast<std::int64_t>(i);
    } else if (is_local(action)) {
      auto& chore = last[i] == kNone ? labour.at_once : *chores[static_cast<std::size_t>(last[i])];
      if (action.kind == ActionKind::kReduce)
        chore.added_bytes += action.bytes * (action.source_count - 1);
      else
        chore.copied_bytes += action.bytes;
    }
    if (action.kind == ActionKind::kSend) continue;
    for (std::uint32_t d = 0; d < action.dependent_count; ++d) {
      std::int64_t& theirs = last[plan.dependents[action.first_dependent + d]];
      theirs = std::max(theirs, last[i]);
    }
  }
  return labour;
}

ScaleWorld::ScaleWorld(const ScaleCase& c) : case_(c) {
  for (Rank rank = 0; rank < c.ranks; ++rank) {
    plans_.push_back(plans_of(c, rank));
    const RankLoad load = load_of(plans_.back());
    keep_most(most_, load);
    mean_sent_bytes_ += static_cast<double>(load.sent_bytes) / static_cast<double>(c.ranks);
    labour_.emplace_back();
    for (Plan& plan : plans_.back()) {
      labour_.back().push_back(labour_of(plan));
      make_weightless(plan);
      plan.actions.shrink_to_fit();
      plan.sources.shrink_to_fit();
    }
  }
}

double ScaleWorld::play_us(const NetworkModel& model) const {
  TimedNetwork network(model, case_.ranks, false);
  const Nowhere memory(std::max(case_.bytes, most_.scratch_bytes) + 1);
  const collectives::RunBuffers buffers{memory.at(), memory.at(), memory.at()};
  collectives::Operation operation;
  operation.request = request_of(case_, 0);
  const Call call = call_of(operation);
  struct Rider {
    std::size_t next = 0;
    std::optional<PlanRun> run;
  };
  std::vector<Rider> riders(static_cast<std::size_t>(case_.ranks));
  return 1e-3 * static_cast<double>(network.run([&](Rank rank) {
           const auto at = static_cast<std::size_t>(rank);
           Rider& rider = riders[at];
           while (!rider.run || rider.run->advance(network.peers(rank))) {
             if (rider.next == plans_[at].size()) return true;
             const Labour& labour = labour_[at][rider.next];
             network.compute(rank, labour.at_once);
             for (const auto& [peer, chores] : labour.by_peer) network.expect(rank, peer, chores);
             rider.run.emplace(plans_[at][rider.next++], call, kSeq, kernels::Reduction{}, buffers);
           }
           return false;
         }));
}

std::uint64_t ScaleWorld::hops() const {
  constexpr double kMicrosPerHop = static_cast<double>(kHop) / 1000;
  return static_cast<std::uint64_t>(std::llround(play_us(hops_only()) / kMicrosPerHop));
}

LinkCosts costs_of(const NetworkModel& model) {
  return {.latency_us = model.latency_us + 2 * model.call_us,
          .bandwidth_gb_s = model.port_gb_s,
          .reduce_gb_s = model.reduce_gb_s};
}

}  // namespace gradring::sim
