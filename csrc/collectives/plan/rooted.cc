// Operations with a root that add nothing up: broadcast, gather, scatter. (reduce: ring.cc,
// direct.cc, gather.cc.)

#include <vector>

#include "collectives/plan/planners.h"

namespace gradring::collectives {

namespace {

// Everybody receives from `parent` (none at the root) and passes on to `children`, piece by piece.
Plan pass_on(const Request& request, Rank parent, const std::vector<Rank>& children,
             Algorithm algorithm) {
  const Parts vector(std::array{request.count}, item_bytes(request.dtype));
  const Rank columns = pieces_of(vector.bytes());
  const bool is_root = request.rank == request.root;
  PlanBuilder plan;
  if (is_root) plan.copy(output(0), input(0), vector.bytes());
  for (Rank column = 0; column < columns; ++column) {
    const Extent piece = vector.piece(0, column, columns);
    std::uint32_t got = PlanBuilder::kNothing;
    if (!is_root) got = plan.recv(parent, output(piece.begin_bytes), piece.bytes);
    const Slice from = is_root ? input(piece.begin_bytes) : output(piece.begin_bytes);
    for (const Rank child : children) plan.send(child, from, piece.bytes, {{got}});
  }
  return std::move(plan).finish(algorithm);
}

}  // namespace

// A pipelined chain: each byte crosses every link once, which is what counts when the vector is
// long.
Plan ring_broadcast(const Request& request) {
  const Rank n = request.world_size;
  const Rank next = wrap(request.rank + 1, n);
  std::vector<Rank> children;
  if (next != request.root) children.push_back(next);
  return pass_on(request, wrap(request.rank - 1, n), children, Algorithm::kRing);
}

// Two binomial trees of log2(n) steps, seen from the root. Within a host rank v receives from v
// without its highest set bit and sends to v plus every power of two above that bit, the nearest
// first. Across hosts it is the lowest bit and the powers below it, the furthest first: where the
// ranks of a host follow each other, one message goes to each further host. But then odd ranks pass
// nothing on, and where ranks take turns on two cores, one core does all the work.
Plan doubling_broadcast(const Request& request) {
  const Rank n = request.world_size;
  const Rank place = wrap(request.rank - request.root, n);
  std::vector<Rank> children;
  Rank distance = 1;
  Rank parent = request.rank;
  if (request.spans_hosts) {
    while (distance < n && (place & distance) == 0) distance *= 2;
    parent = wrap(request.rank - distance, n);
    for (distance /= 2; distance >= 1; distance /= 2)
      if (place + distance < n) children.push_back(wrap(request.rank + distance, n));
  } else {
    while (distance <= place) distance *= 2;
    parent = wrap(request.rank - distance / 2, n);
    for (; place + distance < n; distance *= 2)
      children.push_back(wrap(request.rank + distance, n));
  }
  return pass_on(request, parent, children, Algorithm::kDoubling);
}

Plan direct_broadcast(const Request& request) {
  std::vector<Rank> children;
  for (Rank distance = 1; distance < request.world_size && request.rank == request.root;
       ++distance) {
    children.push_back(wrap(request.rank + distance, request.world_size));
  }
  return pass_on(request, request.root, children, Algorithm::kDirect);
}

Plan direct_gather(const Request& request) {
  const Parts parts = Parts::equal(request);
  const Extent mine = parts.part(request.rank);
  PlanBuilder plan;
  if (request.rank != request.root) {
    plan.send(request.root, input(0), mine.bytes);
    return std::move(plan).finish(Algorithm::kDirect);
  }
  const bool waits = agrees_by_data(parts.bytes());
  if (!waits) plan.copy(output(mine.begin_bytes), input(0), mine.bytes);
  std::vector<std::uint32_t> arrived;
  for (Rank distance = 1; distance < request.world_size; ++distance) {
    const Rank peer = wrap(request.rank - distance, request.world_size);
    const Extent in = parts.part(peer);
    arrived.push_back(plan.recv(peer, output(in.begin_bytes), in.bytes));
  }
  if (waits) plan.copy(output(mine.begin_bytes), input(0), mine.bytes, arrived);
  return std::move(plan).finish(Algorithm::kDirect);
}

Plan direct_scatter(const Request& request) {
  const Parts parts = Parts::equal(request);
  const Extent mine = parts.part(request.rank);
  PlanBuilder plan;
  if (request.rank != request.root) {
    plan.recv(request.root, output(0), mine.bytes);
    return std::move(plan).finish(Algorithm::kDirect);
  }
  plan.copy(output(0), input(mine.begin_bytes), mine.bytes);
  for (Rank distance = 1; distance < request.world_size; ++distance) {
    const Rank peer = wrap(request.rank + distance, request.world_size);
    plan.send(peer, input(parts.part(peer).begin_bytes), parts.part(peer).bytes);
  }
  return std::move(plan).finish(Algorithm::kDirect);
}

}  // namespace gradring::collectives
