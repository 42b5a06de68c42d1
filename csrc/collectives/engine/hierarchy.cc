#include "collectives/engine/hierarchy.h"

#include <algorithm>

#include "base/error.h"

namespace gradring::collectives {

std::unique_ptr<Hierarchy> Hierarchy::make(const std::shared_ptr<transport::World>& world,
                                           const transport::Group& group, Rank rank) {
  if (!world->spans_hosts(group) || !world->shares_memory(world->rank(), world->rank()))
    return nullptr;
  // More ranks than hosts: some host has several. (Without this, the hosts' first ranks would get a
  // hierarchy of their own.)
  std::vector<Rank> first;
  for (const Rank member : group.members) {
    const auto is_here = [&](Rank leader) { return world->shares_host(leader, member); };
    if (std::none_of(first.begin(), first.end(), is_here)) first.push_back(member);
  }
  if (first.size() == group.members.size()) return nullptr;
  return std::unique_ptr<Hierarchy>(new Hierarchy(world, group, rank));
}

Hierarchy::Hierarchy(std::shared_ptr<transport::World> world, const transport::Group& group,
                     Rank rank)
    : world_(std::move(world)), ranks_(static_cast<Rank>(group.members.size())) {
  std::vector<Rank> first;  // Rank of each host's first.
  std::vector<Rank> sizes;
  for (Rank one = 0; one < ranks_; ++one) {
    const auto known = std::find_if(first.begin(), first.end(), [&](Rank leader) {
      return world_->shares_host(group.members[static_cast<std::size_t>(leader)],
                                 group.members[static_cast<std::size_t>(one)]);
    });
    const auto host = static_cast<std::size_t>(known - first.begin());
    if (known == first.end()) {
      first.push_back(one);
      sizes.push_back(0);
    }
    host_of_.push_back(static_cast<Rank>(host));
    local_of_.push_back(sizes[host]++);
  }
  host_ = host_of_[static_cast<std::size_t>(rank)];
  local_rank_ = local_of_[static_cast<std::size_t>(rank)];
  std::vector<Rank> mine;
  for (Rank one = 0; one < ranks_; ++one)
    if (host_of_[static_cast<std::size_t>(one)] == host_) mine.push_back(one);
  constexpr std::uint64_t kNth = ~std::uint64_t{1};
  if (mine.size() > 1)
    local_ = std::make_unique<Level>(world_, group, kNth, static_cast<std::uint64_t>(host_),
                                     std::move(mine));
  if (local_rank_ == 0)
    leaders_ = std::make_unique<Level>(world_, group, kNth, ~std::uint64_t{1}, std::move(first));
}

Hierarchy::~Hierarchy() = default;

bool Hierarchy::supports(const Request& request) {
  if (request.order == Order::kRank) return false;
  if (request.op == OpKind::kBroadcast) return true;
  // Halves are folded in float32 and rounded once, which sums of rounded sums are not.
  return request.op == OpKind::kAllReduce && !is_half(request.dtype);
}

void Hierarchy::execute(const Operation& operation, const Call& call, std::uint64_t seq,
                        transport::Idle& idle) {
  waited_for_.clear();
  if (operation.request.op == OpKind::kBroadcast) return broadcast(operation, call, seq, idle);
  const std::uint64_t item = item_bytes(operation.request.dtype);
  const std::uint64_t segment_count = kSegmentBytes / item;
  for (std::uint64_t begin = 0; begin < operation.request.count; begin += segment_count) {
    Operation segment = operation;
    segment.request.count = std::min(segment_count, operation.request.count - begin);
    segment.input += begin * item;
    segment.output += begin * item;
    all_reduce(segment, call, seq, idle);
  }
}

void Hierarchy::all_reduce(const Operation& segment, const Call& call, std::uint64_t seq,
                           transport::Idle& idle) {
  const std::byte* partial = segment.input;
  if (local_) {
    Operation reduce = segment;
    reduce.request.op = OpKind::kReduce;
    reduce.request.root = 0;
    reduce.has_order = true;
    reduce.request.order = Order::kRing;
    if (reduce.request.reduce_op == ReduceOp::kAvg)
      reduce.request.reduce_op = ReduceOp::kSum;  // Divided between the hosts.
    run(*local_, reduce, call, seq, idle);
    if (local_rank_ == 0) partial = segment.output;
  }
  if (leaders_) {
    Operation exchange = segment;
    exchange.input = partial;
    if (exchange.request.divisor == 0)
      exchange.request.divisor = static_cast<std::uint32_t>(ranks_);
    run(*leaders_, exchange, call, seq, idle);
  }
  if (local_) {
    Operation spread = segment;
    spread.request.op = OpKind::kBroadcast;
    spread.request.root = 0;
    spread.input = segment.output;
    run(*local_, spread, call, seq, idle);
  }
}

void Hierarchy::broadcast(const Operation& operation, const Call& call, std::uint64_t seq,
                          transport::Idle& idle) {
  const auto root = static_cast<std::size_t>(operation.request.root);
  const Rank root_host = host_of_[root];
  Operation step = operation;
  // On the root's host first: its first rank needs it for the others.
  if (host_ == root_host && local_) {
    step.request.root = local_of_[root];
    run(*local_, step, call, seq, idle);
  }
  if (leaders_) {
    step.request.root = root_host;
    // Only the root's own buffer is read-only; a first rank that passes it on has it in its output.
    step.input = operation.output;
    run(*leaders_, step, call, seq, idle);
  }
  if (host_ != root_host && local_) {
    step.request.root = 0;
    step.input = operation.output;
    run(*local_, step, call, seq, idle);
  }
}

void Hierarchy::run(Level& level, Operation operation, const Call& call, std::uint64_t seq,
                    transport::Idle& idle) {
  operation.algorithm = Algorithm::kAuto;
  try {
    level.execute(operation, call, seq, idle);
  } catch (...) {
    waited_for_ = level.waited_for();
    throw;
  }
}

void Hierarchy::leave() {
  for (const auto& level : {local_.get(), leaders_.get()})
    if (level != nullptr) level->leave();
}

}  // namespace gradring::collectives
