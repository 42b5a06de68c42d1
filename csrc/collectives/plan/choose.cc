#include "collectives/plan/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "collectives/plan/operation.h"

namespace gradring::collectives {

namespace {

// One rank's further sends, with nothing to receive, where a further link both ways costs 0.95.
constexpr double kFurtherSend = 0.6 / 0.95;
// Sending a whole vector and then receiving one takes twice as long as a stream of pieces both
// ways.
constexpr double kNotStreamed = 2.0;
// Parts that double from step to step, each sent while one is received, as long as links hold what
// a step sends. Measured with 4 ranks over loopback: 0.7 of the ring's time at 256 KiB.
constexpr double kGrowing = 1.3;
constexpr double kHeldBytes = 512 * 1024;
// Halving adds what it received before it can send the half of it: streams with gaps.
constexpr double kHalvingGaps = 1.05;
// Streams on several links at once get in each other's way.
constexpr double kManyStreams = 1.1;
// With more ranks than this all at once, links start to lose packets or wake-ups to each other.
constexpr double kCrowd = 16.0;
// To copy or add one short piece.
constexpr double kPieceUs = 0.1;
// Steps that take longer than this are those of far hosts: mostly the way.
constexpr double kFarUs = 500;

// What the busiest rank does.
struct Effort {
  double steps = 1;
  double links = 1;        // Used in each step.
  double moved_bytes = 0;  // Sent, or received if that is more.
  double reduced_bytes = 0;
  double slowdown = 1;  // Of the moving, against streams that never pause.
  double further = 1;   // Of what costs say that a further link costs.
  double pieces = 0;    // Too short for their bytes to count, and handled one by one.
};

struct Task {
  double n;
  double bytes;    // Of the whole vector.
  double share;    // bytes * (n-1)/n: what a rank passes on if it handles every chunk but one once.
  double levels;   // log2 of the largest power of two that is at most n.
  double log2_up;  // log2(n), rounded up.
  double lent;     // 1 if there are ranks beyond that power of two.
};

Task task_of(const Request& request) {
  const auto n = static_cast<std::uint32_t>(request.world_size);
  const auto bytes = static_cast<double>(bytes_of(request));
  return {.n = static_cast<double>(n),
          .bytes = bytes,
          .share = bytes * static_cast<double>(n - 1) / static_cast<double>(n),
          .levels = static_cast<double>(std::bit_width(n) - 1),
          .log2_up = static_cast<double>(std::bit_width(n - 1)),
          .lent = std::has_single_bit(n) ? 0.0 : 1.0};
}

// Ring: every step on one link, n-1 of them for each half.
Effort ring(OpKind op, const Task& w) {
  switch (op) {
    case OpKind::kAllReduce: return {2 * (w.n - 1), 1, 2 * w.share, w.share};
    case OpKind::kReduceScatter: return {w.n - 1, 1, w.share, w.share};
    case OpKind::kReduce: return {w.n, 1, 2 * w.share, w.share};  // Then all chunks to the root.
    case OpKind::kBroadcast:  // A chain: the last rank gets its first piece n-2 pieces late.
      return {w.n - 1, 1,
              w.bytes + (w.n - 2) * std::min(w.bytes, static_cast<double>(kPieceBytes))};
    default: return {w.n - 1, 1, w.share};  // all_gather
  }
}

// Doubling: log2(n) steps; what adds moves the whole vector in each, and two more if ranks lend
// theirs.
Effort doubling(OpKind op, const Task& w) {
  switch (op) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter: {
      const double steps = w.levels + 2 * w.lent;
      return {steps, 1, steps * w.bytes, (w.levels + w.lent) * w.bytes, kNotStreamed};
    }
    case OpKind::kBroadcast:
      return {w.log2_up, 1, w.log2_up * w.bytes};  // The root has that many children.
    default:                                       // all_gather, barrier
      return {w.log2_up, 1, w.share, 0, w.share <= kHeldBytes ? kGrowing : kNotStreamed};
  }
}

// Halving-doubling: the ring's bytes in 2 log2(n) steps, and two whole vectors if ranks lend
// theirs. Half of that scatters; the root of a reduce gets all parts at once.
Effort halving(OpKind op, const Task& w) {
  const double half = w.share + w.lent * w.bytes;
  if (op == OpKind::kReduceScatter)
    return {w.levels + 2 * w.lent, 1, half, half, kHalvingGaps, 1, w.n};
  if (op == OpKind::kReduce)
    return {w.levels + w.lent + 1, 1, half + w.share, half, kNotStreamed, 1, 2 * w.n};
  return {2 * (w.levels + w.lent), 1, 2 * (w.share + w.lent * w.bytes), w.share + w.lent * w.bytes,
          kHalvingGaps};
}

// Direct: the ring's bytes in one step (adding or passing on) or two (both), on all links at once.
Effort direct(OpKind op, const Task& w) {
  const double links = w.n - 1;
  const double crowd = std::max(1.0, w.n / kCrowd);
  const double slowdown = links > 1 ? kManyStreams : 1;
  switch (op) {
    case OpKind::kAllReduce:
    case OpKind::kReduce: return {2, links * crowd, 2 * w.share * crowd, w.share, slowdown};
    case OpKind::kReduceScatter: return {1, links * crowd, w.share * crowd, w.share, slowdown};
    case OpKind::kBroadcast:
      return {1, links * crowd, links * w.bytes * crowd, 0, slowdown, kFurtherSend};
    default:
      return {1, links * crowd, w.share * crowd, 0,
              slowdown};  // all_gather, gather, scatter, all_to_all
  }
}

// Gather: one step, but every vector travels whole and is added by whoever wants the result.
Effort gather(const Task& w) {
  const double links = w.n - 1;
  return {1, links * std::max(1.0, w.n / kCrowd), links * w.bytes, links * w.bytes, kNotStreamed};
}

Effort effort_of(const Request& request, Algorithm algorithm) {
  const Task task = task_of(request);
  switch (algorithm) {
    case Algorithm::kRing: return ring(request.op, task);
    case Algorithm::kDoubling: return doubling(request.op, task);
    case Algorithm::kHalving: return halving(request.op, task);
    case Algorithm::kDirect: return direct(request.op, task);
    case Algorithm::kGather: return gather(task);
    case Algorithm::kAuto:
    case Algorithm::kFlat:
    case Algorithm::kHierarchical: break;
  }
  throw InvalidArgument(str("the algorithm '", name(algorithm), "' has no cost of its own"));
}

// What a ring between far hosts takes less, or more, than its steps and its bytes together: while
// one step's bytes are sent, the first of the step before are on their way, or here; but all have
// to agree.
double correction_us(const Request& request, const Effort& effort, double moved_us,
                     const LinkCosts& costs) {
  const double hidden_us = std::min(costs.latency_us, moved_us / effort.steps);
  const double agreeing =
      agrees_first(request, Algorithm::kRing) ? task_of(request).log2_up - 1 : 0;
  return agreeing * costs.latency_us - (effort.steps - 1) * hidden_us;
}

}  // namespace

LinkCosts loopback_costs() {
  return {.latency_us = 40, .bandwidth_gb_s = 1.9, .reduce_gb_s = 10};
}

LinkCosts shared_memory_costs() {
  return {.latency_us = 4, .bandwidth_gb_s = 4, .reduce_gb_s = 10};
}

LinkCosts costs_of(const CostProfile& profile, bool has_shared_memory) {
  if (has_shared_memory) return profile.shared_memory.value_or(shared_memory_costs());
  return profile.tcp.value_or(loopback_costs());
}

LinkCosts costs_at(const LinkCosts& near, double path_us) {
  // A gigabit a second, which nobody has measured. Too little costs at most what one step takes, as
  // more bytes are then spared than is worth a step; too much costs the bytes.
  constexpr double kFarGbS = 0.118;
  if (path_us < kFarUs) return near;
  LinkCosts far = near;
  far.latency_us += path_us;
  // What a further link costs is this rank's own work; the way takes no longer for it.
  far.further_link *= near.latency_us / far.latency_us;
  far.bandwidth_gb_s = std::min(near.bandwidth_gb_s, kFarGbS);
  return far;
}

std::uint16_t pieces_on_way(const LinkCosts& costs) {
  constexpr double kBytesPerUs = 1250;
  constexpr double kMost = 0xffff;
  const double pieces = costs.latency_us * kBytesPerUs / static_cast<double>(kPieceBytes);
  return static_cast<std::uint16_t>(std::min(pieces, kMost));
}

// steps * latency (more for each further link) + bytes moved / bandwidth (more if not streamed) +
// bytes added / rate + short pieces * what each takes.
double estimate_us(const Request& request, Algorithm algorithm, const LinkCosts& costs) {
  if (request.world_size == 1) return 0;
  constexpr double kBytesPerUs = 1e3;  // One GB/s.
  const Effort effort = effort_of(request, algorithm);
  const double further = costs.further_link * effort.further * (effort.links - 1);
  const double step_us = costs.latency_us * (1 + further);
  const bool is_far = costs.latency_us >= kFarUs;
  // Hosts that wait for a way have time to receive while they send.
  const double slowdown = is_far ? std::min(effort.slowdown, kManyStreams) : effort.slowdown;
  const double moved_us = effort.moved_bytes * slowdown / (costs.bandwidth_gb_s * kBytesPerUs);
  const bool follow_each_other =
      is_far && algorithm == Algorithm::kRing && request.op != OpKind::kBroadcast;
  const double overlap_us = follow_each_other ? correction_us(request, effort, moved_us, costs) : 0;
  return effort.steps * step_us + moved_us + overlap_us + effort.pieces * kPieceUs +
         effort.reduced_bytes / (costs.reduce_gb_s * kBytesPerUs);
}

Algorithm choose(const Request& request, const LinkCosts& costs) {
  const std::vector<Algorithm> algorithms = algorithms_for(request);
  if (algorithms.empty()) {
    throw InvalidArgument(str(name(request.op), ": no algorithm makes a plan for it"));
  }
  return *std::min_element(algorithms.begin(), algorithms.end(), [&](Algorithm a, Algorithm b) {
    return estimate_us(request, a, costs) < estimate_us(request, b, costs);
  });
}

}  // namespace gradring::collectives
