#include "collectives/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <set>

#include "base/error.h"
#include "collectives/plan/uneven.h"

namespace gradring::collectives {
namespace {

using transport::Idle;

constexpr std::size_t kPlansKept = 32;
constexpr std::size_t kStreamsShown = 4;
// Below it the extra steps inside the hosts cost more than the bytes they save on the network.
constexpr std::uint64_t kHierarchicalBytes = 64 * 1024;
// From here on the slowest link decides how long an all_reduce takes.
constexpr std::uint64_t kUnevenBytes = 1024 * 1024;
// What comes before the first wait of an operation of this size takes less than reading a clock.
constexpr std::uint64_t kStampLaterBytes = 1024;

bool is_same(const Request& a, const Request& b) {
  return a.op == b.op && a.dtype == b.dtype && a.root == b.root && a.count == b.count &&
         a.order == b.order && a.spans_hosts == b.spans_hosts && a.counts == b.counts &&
         a.recv_counts == b.recv_counts;
}

kernels::Reduction reduction_of(const Request& request) {
  kernels::Reduction reduction;
  reduction.dtype = request.dtype;
  reduction.op = request.reduce_op;
  if (reduction.op == ReduceOp::kAvg) reduction.divisor = divisor_of(request);
  return reduction;
}

// What ranks have said that their links send, where all have and each is alone on its host; else
// nothing. A direct exchange of many more ranks has too many streams.
std::vector<double> link_rates(const transport::World& world, const transport::Group& group) {
  constexpr std::size_t kMostRanks = 16;
  std::vector<double> rates;
  std::set<std::string> hosts;
  for (const Rank rank : group.members) {
    const wire::Member& member = world.member(rank);
    if (member.link_mbit == 0 || !hosts.insert(member.host_key).second) return {};
    rates.push_back(member.link_mbit);
  }
  return rates.size() <= kMostRanks ? rates : std::vector<double>{};
}

// The profile's; else the defaults, for hosts that are at least as far apart as their ways to rank
// 0 differ.
LinkCosts costs_between(const transport::World& world, const transport::Group& group,
                        bool has_shared_memory) {
  const LinkCosts costs = costs_of(world.costs(), has_shared_memory);
  if (has_shared_memory || world.costs().tcp) return costs;
  const auto path_us = [&](Rank rank) { return world.member(rank).path_us; };
  const auto [nearest, farthest] = std::ranges::minmax_element(group.members, {}, path_us);
  return costs_at(costs, path_us(*farthest) - path_us(*nearest));
}

// What Operation::divisor_at says now.
std::uint32_t whole_divisor(double divisor) {
  constexpr double kMost = 1 << 24;
  return divisor >= 1 && divisor <= kMost && divisor == std::floor(divisor)
             ? static_cast<std::uint32_t>(divisor)
             : 1;
}

}  // namespace

Engine::Engine(std::shared_ptr<transport::World> world, std::shared_ptr<transport::Group> group,
               Rank rank)
    : world_(world), group_(group), rank_(rank), has_shared_memory_(true), mesh_(world, group, 0) {
  for (const Rank member : group->members)
    if (!world->shares_memory(world->rank(), member)) has_shared_memory_ = false;
  costs_ = costs_between(*world, *group, has_shared_memory_);
  pieces_on_way_ = pieces_on_way(costs_);
  link_rates_ = link_rates(*world, *group);
  hierarchy_ = Hierarchy::make(world, *group, rank);
  spans_hosts_ = world->spans_hosts(*group);
}

Request Engine::complete(const Operation& operation) const {
  Request request = operation.request;
  request.rank = rank_;
  request.world_size = static_cast<Rank>(group_->members.size());
  request.spans_hosts = spans_hosts_;
  if (operation.has_order) return request;
  request.order = operation.is_rank_ordered
                      ? Order::kRank
                      : order_for(request.op, request.world_size, bytes_of(request), request.dtype);
  // An algorithm that was asked for by name brings its own order along.
  if (!operation.is_rank_ordered && operation.algorithm == Algorithm::kRing)
    request.order = Order::kRing;
  if (!operation.is_rank_ordered && reduces(request.op) &&
      (operation.algorithm == Algorithm::kDoubling || operation.algorithm == Algorithm::kHalving))
    request.order = Order::kTree;
  const bool may_be_direct =
      operation.algorithm == Algorithm::kAuto || operation.algorithm == Algorithm::kDirect;
  if (!link_rates_.empty() && may_be_direct && request.op == OpKind::kAllReduce &&
      bytes_of(request) >= kUnevenBytes)
    request.counts = uneven_shares(request.count, link_rates_);
  return request;
}

Algorithm Engine::decide(const Request& request, Algorithm wanted) const {
  const bool may_be_flat = has_shared_memory_ && Flat::supports(request);
  if (wanted == Algorithm::kFlat && !may_be_flat)
    throw InvalidArgument(str(name(request.op),
                              ": algorithm 'flat' needs shared memory with every rank",
                              has_shared_memory_ ? ", and does not exist for this operation" : ""));
  const bool may_be_hierarchical = hierarchy_ && Hierarchy::supports(request);
  if (wanted == Algorithm::kHierarchical && !may_be_hierarchical)
    throw InvalidArgument(
        str(name(request.op),
            ": algorithm 'hierarchical' is for all_reduce and broadcast, not of "
            "16-bit floats, and needs several hosts, one of them with several ranks"));
  if (wanted == Algorithm::kAuto && may_be_flat) return Algorithm::kFlat;
  if (wanted == Algorithm::kAuto && may_be_hierarchical && bytes_of(request) >= kHierarchicalBytes)
    return Algorithm::kHierarchical;
  if (wanted != Algorithm::kAuto) return wanted;
  if (request.op == OpKind::kAllReduce && !request.counts.empty()) return Algorithm::kDirect;
  return choose(request, costs_);
}

void Engine::execute(const Operation& asked, const Call& call, std::uint64_t seq, Idle& idle) {
  waited_for_.clear();
  Operation operation = asked;
  if (operation.divisor_at != nullptr)
    operation.request.divisor = whole_divisor(*operation.divisor_at);
  const Request request = complete(operation);
  // A short one is stamped when it first waits, which costs nothing then.
  if (auto* record = idle.record(); record != nullptr && bytes_of(request) > kStampLaterBytes)
    record->stamp();
  if (request.world_size == 1) return run_local(request, operation);
  const Algorithm algorithm = decide(request, operation.algorithm);
  if (algorithm == Algorithm::kFlat) return run_flat(request, operation, call, seq, idle);
  if (algorithm == Algorithm::kHierarchical) return run_hierarchy(operation, call, seq, idle);
  const Plan& plan = plan_for(request, algorithm);
  run_plan(plan, operation, call, seq, idle);
}

const Plan& Engine::plan_for(const Request& request, Algorithm algorithm) {
  for (auto entry = plans_.begin(); entry != plans_.end(); ++entry) {
    if (entry->algorithm != algorithm || !is_same(entry->key, request)) continue;
    plans_.splice(plans_.begin(), plans_, entry);
    return plans_.front().plan;
  }
  Request planned = request;
  planned.pieces_on_way = pieces_on_way_;
  plans_.push_front({planned, algorithm, agreed_plan(planned, algorithm)});
  if (plans_.size() > kPlansKept) plans_.pop_back();
  return plans_.front().plan;
}

void Engine::run_plan(const Plan& plan, const Operation& operation, const Call& call,
                      std::uint64_t seq, Idle& idle) {
  Request request = operation.request;
  request.world_size = static_cast<Rank>(group_->members.size());
  PlanRun run(plan, call, seq, reduction_of(request),
              {operation.input, operation.output, scratch(plan.scratch_bytes)});
  PlanRun::Traffic before;  // An operation may be made of several plans.
  if (auto* record = idle.record()) {
    record->stamp();
    before = {record->sent(), 0, record->received(), 0};
    record->expect(run.traffic().to_send, run.traffic().to_receive);
  }
  mesh_.set_timeout(idle.timeout());
  try {
    while (!run.advance(mesh_)) {
      if (run.has_moved()) idle.reset();
      run.interests(mesh_, interests_);
      record_progress(run, before, idle);
      if (group_->has_leavers()) throw_if_in_vain(run);
      idle.on_links(interests_);
    }
    record_progress(run, before, idle);
  } catch (...) {
    record_progress(run, before, idle);
    note_progress(run, call);
    throw;
  }
}

// A rank that has left has taken all that its own operations needed, so it was not in this one. Its
// end of a connection may still be there, full.
void Engine::throw_if_in_vain(const PlanRun& run) const {
  const auto has_left = [this](Rank rank) {
    return group_->left(group_->members[static_cast<std::size_t>(rank)]).has_value();
  };
  if (const auto send = run.send_in_vain(has_left))
    throw LinkClosed{send->peer, false, send->bytes, send->expected_bytes};
}

void Engine::record_progress(const PlanRun& run, const PlanRun::Traffic& before, Idle& idle) const {
  auto* record = idle.record();
  if (record == nullptr) return;
  const PlanRun::Traffic now = run.traffic();
  record->set_moved(before.sent + now.sent, before.received + now.received);
  const Rank awaited = run.awaited();
  idle.waits_for(awaited < 0 ? awaited : group_->members[static_cast<std::size_t>(awaited)]);
}

void Engine::run_hierarchy(const Operation& operation, const Call& call, std::uint64_t seq,
                           Idle& idle) {
  // The hosts would find a mismatch between them only after adding up inside each.
  agree(call, seq, idle);
  try {
    hierarchy_->execute(operation, call, seq, idle);
  } catch (...) {
    waited_for_ = hierarchy_->waited_for();
    throw;
  }
}

void Engine::agree(const Call& call, std::uint64_t seq, Idle& idle) {
  // A dissemination barrier whose headers carry this call.
  Operation barrier;
  barrier.request.op = OpKind::kBarrier;
  barrier.request.dtype = DType::kUInt8;
  run_plan(plan_for(complete(barrier), Algorithm::kDoubling), barrier, call, seq, idle);
}

void Engine::run_flat(const Request& request, const Operation& operation, const Call& call,
                      std::uint64_t seq, Idle& idle) {
  try {
    const auto ranks = static_cast<Rank>(group_->members.size());
    if (!flat_) {
      auto memory = meet_segment(Flat::memory_bytes(ranks), idle, [&](const auto& made) {
        Flat::lay_out(made, ranks, group_->processors);
      });
      flat_ = std::make_unique<Flat>(std::move(memory), *group_, rank_);
    }
    SharedArrays::Found shared;
    if (request.op == OpKind::kAllReduce && operation.input == operation.output)
      shared = shared_arrays_.find(operation.input, bytes_of(request));
    flat_->run(request, call, seq, operation.input, operation.output, idle, shared);
  } catch (...) {
    if (flat_ && flat_->awaited() >= 0)
      waited_for_ = str("; waiting for ", describe(flat_->awaited()));
    throw;
  }
}

bool Engine::can_share(std::size_t bytes) const {
  const auto ranks = static_cast<Rank>(group_->members.size());
  if (!has_shared_memory_ || ranks == 1) return true;
  return transport::SharedMemory::is_possible(SharedArray::memory_bytes(ranks, bytes));
}

std::shared_ptr<SharedArray> Engine::share_memory(std::size_t bytes, Idle& idle) {
  const auto ranks = static_cast<Rank>(group_->members.size());
  if (!has_shared_memory_ || ranks == 1) return nullptr;
  const std::uint32_t number = shared_arrays_.next_number();
  auto array = std::make_shared<SharedArray>(
      meet_segment(SharedArray::memory_bytes(ranks, bytes), idle), rank_, ranks, bytes, number);
  shared_arrays_.add(array);
  return array;
}

// The group's first rank makes the segment, prepares it and passes it on; the others wait for it to
// come through the door.
transport::SharedMemory Engine::meet_segment(std::size_t bytes, Idle& idle,
                                             const Prepare& prepare) {
  const auto ranks = static_cast<Rank>(group_->members.size());
  if (rank_ == 0) {
    auto memory = transport::SharedMemory::create(bytes);
    if (prepare) prepare(memory);
    for (Rank peer = 1; peer < ranks; ++peer)
      world_->give_segment(*group_, group_->members[static_cast<std::size_t>(peer)], memory,
                           idle.timeout());
    return memory;
  }
  const Rank leader = group_->members[0];
  while (true) {
    const auto left = group_->left(leader);
    if (auto arrivals = group_->take(transport::Purpose::kSegment, 0, leader); !arrivals.empty())
      return world_->take_segment(*group_, std::move(arrivals.front()), bytes, idle.timeout());
    if (left) throw PeerLost(leader, *left);
    waited_for_ = str("; waiting for ", describe(0), " to share its memory");
    idle.on_links({});
  }
}

void Engine::run_local(const Request& request, const Operation& operation) const {
  // A world of one: every collective is a copy, and avg divides by one.
  const std::uint64_t count = request.counts.empty() ? request.count : request.counts[0];
  const std::uint64_t bytes = count * item_bytes(request.dtype);
  if (bytes > 0 && operation.input != operation.output)
    kernels::copy(operation.output, operation.input, bytes);
}

std::byte* Engine::scratch(std::uint64_t bytes) {
  if (bytes > scratch_bytes_) {
    const std::uint64_t rounded = (bytes + 4095) / 4096 * 4096;
    scratch_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, rounded)));
    if (!scratch_) throw std::bad_alloc();
    scratch_bytes_ = rounded;
  }
  return scratch_.get();
}

void Engine::note_progress(const PlanRun& run, const Call& call) {
  std::size_t shown = 0;
  bool lacks_all = false;
  for (const StreamProgress& stream : run.unfinished()) {
    lacks_all |= stream.is_recv && stream.bytes == 0;
    if (++shown > kStreamsShown) break;
    waited_for_ += str(shown == 1 ? "; waiting for " : ", ", describe(stream.peer), ": ");
    waited_for_ += stream.expected_bytes == 0
                       ? std::string("no word yet that it is in this call")
                       : str(stream.bytes, " of ", stream.expected_bytes, " bytes ",
                             stream.is_recv ? "received" : "sent");
  }
  // A part of nothing is not sent, so that nothing shows that the other rank has another count.
  if (lacks_all && call.op == OpKind::kAllToAll)
    waited_for_ += str("; a rank that is past this call may have a count of 0 for rank ", rank_,
                       " in its send_counts");
}

std::string Engine::describe(Rank group_rank) const {
  return world_->describe(group_->members[static_cast<std::size_t>(group_rank)]);
}

void Engine::leave() {
  mesh_.hang_up();
  if (flat_) flat_->leave();
  flat_.reset();  // Who still looks into that memory has mapped it too.
  scratch_.reset();
  scratch_bytes_ = 0;
  if (hierarchy_) hierarchy_->leave();
}

}  // namespace gradring::collectives
