#include "collectives/plan/plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

struct Planner {
  OpKind op;
  Algorithm algorithm;
  Plan (*plan)(const Request&);
};

// Up to here fewer steps are worth more than the ring's even stream. Measured with 4 ranks: over
// loopback halving-doubling takes half of the ring's time at 256 KiB and 0.7 of it at 1 MiB; on
// links of 1 Gbit/s it gets 0.94 and 0.95 of the rate there, the ring 0.70 and 0.94. At 2 MiB the
// ring is ahead on such links (0.94 against 0.89).
constexpr std::uint64_t kTreeBytesPerRank = std::uint64_t{256} << 10;
constexpr std::uint64_t kTreeBytes = std::uint64_t{2} << 20;
// More than 64 ranks: chunks so short that a ring spends its 2(n-1) steps waiting (docs/scale.md).
constexpr std::uint64_t kTreeChunkBytes = std::uint64_t{32} << 10;

// Everything there is.
constexpr Planner kPlanners[] = {
    {OpKind::kBarrier, Algorithm::kDoubling, doubling_barrier},
    {OpKind::kAllReduce, Algorithm::kRing, ring_all_reduce},
    {OpKind::kAllReduce, Algorithm::kDoubling, doubling_all_reduce},
    {OpKind::kAllReduce, Algorithm::kHalving, halving_all_reduce},
    {OpKind::kAllReduce, Algorithm::kDirect, direct_all_reduce},
    {OpKind::kAllReduce, Algorithm::kGather, gather_all_reduce},
    {OpKind::kReduceScatter, Algorithm::kRing, ring_reduce_scatter},
    {OpKind::kReduceScatter, Algorithm::kDoubling, doubling_reduce_scatter},
    {OpKind::kReduceScatter, Algorithm::kHalving, halving_reduce_scatter},
    {OpKind::kReduceScatter, Algorithm::kDirect, direct_reduce_scatter},
    {OpKind::kAllGather, Algorithm::kRing, ring_all_gather},
    {OpKind::kAllGather, Algorithm::kDoubling, doubling_all_gather},
    {OpKind::kAllGather, Algorithm::kDirect, direct_all_gather},
    {OpKind::kBroadcast, Algorithm::kRing, ring_broadcast},
    {OpKind::kBroadcast, Algorithm::kDoubling, doubling_broadcast},
    {OpKind::kBroadcast, Algorithm::kDirect, direct_broadcast},
    {OpKind::kReduce, Algorithm::kRing, ring_reduce},
    {OpKind::kReduce, Algorithm::kHalving, halving_reduce},
    {OpKind::kReduce, Algorithm::kDirect, direct_reduce},
    {OpKind::kReduce, Algorithm::kGather, gather_reduce},
    {OpKind::kGather, Algorithm::kDirect, direct_gather},
    {OpKind::kScatter, Algorithm::kDirect, direct_scatter},
    {OpKind::kAllToAll, Algorithm::kDirect, direct_all_to_all},
};

// Integers wrap and bool is logic: the order of additions cannot be seen in the result.
bool is_order_free(DType dtype) {
  return dtype != DType::kFloat64 && dtype != DType::kFloat32 && !is_half(dtype);
}

bool gives_order(Algorithm algorithm, const Request& request) {
  if (!reduces(request.op) || request.world_size == 1 || is_order_free(request.dtype)) return true;
  switch (algorithm) {
    case Algorithm::kRing:  // Passes partial results on, which 16-bit floats would round each time.
      return request.order == Order::kRing && !is_half(request.dtype);
    case Algorithm::kDoubling:
    case Algorithm::kHalving: return request.order == Order::kTree && !is_half(request.dtype);
    case Algorithm::kDirect:
    case Algorithm::kGather: return true;
    case Algorithm::kAuto:
    case Algorithm::kFlat:
    case Algorithm::kHierarchical: return false;
  }
  return false;
}

std::string_view order_name(Order order) {
  switch (order) {
    case Order::kRing: return "ring";
    case Order::kTree: return "tree";
    case Order::kRank: return "rank";
  }
  return "unknown";
}

void check(const Request& request) {
  const auto n = static_cast<std::size_t>(std::max<Rank>(request.world_size, 0));
  const auto fail = [&request](const auto&... what) {
    throw InvalidArgument(str(name(request.op), ": ", what...));
  };
  if (request.world_size < 1 || request.rank < 0 || request.rank >= request.world_size) {
    fail("rank ", request.rank, " is not in a world of ", request.world_size);
  }
  if (request.root < 0 || request.root >= request.world_size) {
    fail("root ", request.root, " is not in a world of ", request.world_size);
  }
  for (const auto* counts : {&request.counts, &request.recv_counts}) {
    if (!counts->empty() && counts->size() != n) {
      fail("got ", counts->size(), " counts for ", request.world_size, " ranks; give one per rank");
    }
  }
  if (request.op == OpKind::kAllToAll && request.counts.empty() != request.recv_counts.empty()) {
    fail("give both what is sent to and what comes from each rank, or neither");
  }
  const auto own = static_cast<std::size_t>(request.rank);
  // Nobody else would see it: between two ranks the headers do.
  if (!request.recv_counts.empty() && request.counts[own] != request.recv_counts[own]) {
    fail("rank ", request.rank, " sends itself ", request.counts[own], " elements, but takes ",
         request.recv_counts[own], " from itself");
  }
}

// A world of one: the result is the input.
Plan alone(const Request& request, Algorithm algorithm) {
  PlanBuilder plan;
  if (request.op != OpKind::kBarrier) plan.copy(output(0), input(0), Parts(request).bytes());
  return std::move(plan).finish(algorithm);
}

}  // namespace

bool reduces(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kReduceScatter || op == OpKind::kReduce;
}

Order order_for(OpKind op, Rank world_size, std::uint64_t bytes, DType /*dtype*/) {
  if (!reduces(op) || world_size <= 2) return Order::kRing;
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t most =
      std::max(std::min(kTreeBytesPerRank * ranks, kTreeBytes), kTreeChunkBytes * ranks);
  return bytes <= most ? Order::kTree : Order::kRing;
}

std::uint64_t chunk_begin(std::uint64_t count, Rank parts, Rank index) {
  // floor(count * index / parts) without the product: count = whole * parts + rest.
  const auto divisor = static_cast<std::uint64_t>(parts);
  const auto factor = static_cast<std::uint64_t>(index);
  return count / divisor * factor + count % divisor * factor / divisor;
}

std::vector<Rank> operand_ranks(Order order, Rank world_size, Rank owner) {
  std::vector<Rank> ranks(static_cast<std::size_t>(world_size));
  Rank next = order == Order::kRing ? wrap(owner + 1, world_size) : 0;
  for (Rank& rank : ranks) {
    rank = next;
    next = wrap(next + 1, world_size);
  }
  return ranks;
}

std::uint32_t divisor_of(const Request& request) {
  return request.divisor != 0 ? request.divisor : static_cast<std::uint32_t>(request.world_size);
}

kernels::Fold fold_of(Order order) {
  return order == Order::kTree ? kernels::Fold::kTree : kernels::Fold::kLeft;
}

std::vector<Algorithm> algorithms_for(const Request& request) {
  std::vector<Algorithm> algorithms;
  for (const Planner& planner : kPlanners) {
    if (planner.op == request.op && gives_order(planner.algorithm, request)) {
      algorithms.push_back(planner.algorithm);
    }
  }
  return algorithms;
}

Plan make_plan(const Request& request, Algorithm algorithm) {
  check(request);
  for (const Planner& planner : kPlanners) {
    if (planner.op != request.op || planner.algorithm != algorithm) continue;
    if (!gives_order(algorithm, request)) break;
    return request.world_size == 1 ? alone(request, algorithm) : planner.plan(request);
  }
  std::string possible;
  for (const Algorithm other : algorithms_for(request)) {
    possible += str(possible.empty() ? "" : ", ", name(other));
  }
  throw InvalidArgument(
      str(name(request.op), " of ", name(request.dtype), ", added in ", order_name(request.order),
          " order, cannot use the algorithm '", name(algorithm),
          possible.empty() ? "'; no algorithm makes a plan for it" : "'; it can use: ", possible));
}

}  // namespace gradring::collectives
