// A plan says what one rank does in one collective: what it sends, receives, reduces and copies,
// and what must come first. Plans are pure data made by pure functions (planners.h lists them): no
// I/O, no clock, no pointers. PlanRun (run.h) walks a plan over links; the same plan runs over TCP,
// shared-memory rings and the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "base/call.h"  // OpKind and name(OpKind) live there (namespace gradring).
#include "base/types.h"
#include "kernels/reduce.h"

namespace gradring::collectives {

// How ranks talk. kAuto lets choose.h decide. Names as in the literature: see docs/semantics.md.
using gradring::Algorithm;
using gradring::name;

// The order of additions: the only thing that the bits of a floating-point result depend on
// (docs/semantics.md). The vector of `count` elements is cut into n chunks; chunk c is
// [c*count/n, (c+1)*count/n).
//   kRing: chunk c is ((x[c+1] + x[c+2]) + ... + x[n-1] + x[0] + ...) + x[c]: what a ring computes.
//   kTree: every chunk is the pairwise tree of kernels::Fold::kTree over x[0..n-1]: what recursive
//     doubling computes.
//   kRank: every chunk is ((x[0] + x[1]) + x[2]) + ...
enum class Order : std::uint8_t { kRing, kTree, kRank };

// all_reduce, reduce_scatter and reduce.
bool reduces(OpKind op);

// A pure function of what all ranks know, never of the transport: this is promise P1. The same for
// all operations that reduce, so that their results are the same bits, or parts of them.
Order order_for(OpKind op, Rank world_size, std::uint64_t bytes, DType dtype);

// First element of chunk `index` of `count` elements in `parts` parts; the end of the last chunk is
// chunk_begin(count, parts, parts) == count. Exact for any 64-bit count (no overflow).
std::uint64_t chunk_begin(std::uint64_t count, Rank parts, Rank index);

// The operands of chunk `owner` in the order they are added, as ranks. Ring: owner+1, ..., owner.
// Tree and rank: 0..n-1.
std::vector<Rank> operand_ranks(Order order, Rank world_size, Rank owner);
kernels::Fold fold_of(Order order);

enum class Place : std::uint8_t { kInput, kOutput, kScratch };

struct Slice {
  Place place = Place::kInput;
  std::uint64_t offset_bytes = 0;
};

enum class ActionKind : std::uint8_t { kSend, kRecv, kReduce, kCopy };

struct Action {
  ActionKind kind = ActionKind::kCopy;
  Rank peer = -1;           // kSend, kRecv.
  Slice at;                 // kSend: read from here. Others: written here.
  std::uint64_t bytes = 0;  // Never 0.
  // kReduce: the operands, in order, are Plan::sources[first_source .. +source_count). kCopy:
  // exactly one source.
  std::uint32_t first_source = 0;
  std::uint32_t source_count = 0;
  kernels::Fold fold = kernels::Fold::kLeft;
  bool is_final = false;         // kReduce: divide here if the operation is avg.
  std::uint32_t wait_count = 0;  // How many earlier actions must complete first.
  // Plan::dependents[first_dependent .. +dependent_count) wait for this one.
  std::uint32_t first_dependent = 0;
  std::uint32_t dependent_count = 0;
};

// Rules a plan keeps (checked by plan_order_test):
//  - Sends to one peer happen in the order listed; so do receives from one peer. The other side
//    lists the same bytes in the same order (cut differently is fine: a link is a byte stream).
//  - An action depends only on earlier actions in the list, so no plan waits for itself; and across
//    ranks only on earlier rounds of sends and receives, so no group of plans waits in a circle,
//    however little a link holds.
//  - Two actions that touch the same bytes, one of them writing, are ordered by dependencies. Input
//    is never written as such.
//  - That also holds in place. all_reduce, broadcast, reduce: output is input. reduce_scatter,
//    scatter: output is this rank's part of input. all_gather, gather: input is this rank's part of
//    output. all_to_all is never in place. The run skips a copy onto itself.
//  - No reduce or copy writes kOutput before data from every rank that contributes has arrived,
//    when `bytes` of the whole operation is at most kAgreeByDataBytes; above that the ranks agree
//    on the call meanwhile (agreed_plan).
struct Plan {
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t scratch_bytes = 0;
  std::vector<Action> actions;
  std::vector<Slice> sources;
  std::vector<std::uint32_t> dependents;
  // The first actions, a byte each: they say only that ranks are in this call (agreed_plan).
  std::uint32_t tokens = 0;
};

struct Request {
  OpKind op = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank rank = 0;
  Rank world_size = 1;
  Rank root = 0;  // broadcast, reduce, gather, scatter.
  // Elements. all_reduce, broadcast, reduce: of the vector. gather, scatter: of one rank's part.
  std::uint64_t count = 0;
  // Elements per rank. reduce_scatter, all_gather: of each rank's part, the same list on every rank
  // (size n, or empty for an even cut of `count` by chunk_begin). all_reduce, direct: what each
  // rank adds up, `count` in all; the result has the same bits however it is cut. all_to_all: what
  // this rank sends to each rank; `recv_counts` what it gets.
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> recv_counts;
  Order order = Order::kRing;
  // broadcast: the ranks are of several hosts; those of one mostly follow each other.
  bool spans_hosts = false;
  // How many pieces of kPieceBytes the ways between ranks hold at least, in one direction: plans
  // for long vectors keep so many under way, as far as memory allows. 0: so few that all do.
  std::uint16_t pieces_on_way = 0;
  // avg: what the sum is divided by; 0: the number of ranks. Of no concern to a plan.
  std::uint32_t divisor = 0;
};

// Largest piece that is reduced at once: a few of them fit into a second-level cache.
inline constexpr std::uint64_t kPieceBytes = 256 * 1024;
inline constexpr std::uint64_t kAgreeByDataBytes = 512 * 1024;

// Builds a plan action by action. Each call returns the action's index, to be named in a later
// call's `after`. Zero-byte sends, receives, reduces and copies may be asked for: they return
// kNothing, and waiting for kNothing is free.
class PlanBuilder {
 public:
  static constexpr std::uint32_t kNothing = UINT32_MAX;
  using After = std::span<const std::uint32_t>;

  std::uint32_t send(Rank peer, Slice from, std::uint64_t bytes, After after = {});
  std::uint32_t recv(Rank peer, Slice into, std::uint64_t bytes, After after = {});
  std::uint32_t copy(Slice into, Slice from, std::uint64_t bytes, After after = {});
  std::uint32_t reduce(Slice into, std::span<const Slice> sources, std::uint64_t bytes,
                       kernels::Fold fold, bool is_final, After after = {});
  Slice scratch(std::uint64_t bytes);  // 64-byte aligned, distinct from every other call's.
  Plan finish(Algorithm algorithm) &&;

 private:
  std::uint32_t add(Action action, After after);
  Plan plan_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;  // (before, after)
};

// What avg divides by.
std::uint32_t divisor_of(const Request& request);

// The one entry: dispatches on op and algorithm (never kAuto, kFlat, kHierarchical). Throws
// InvalidArgument when the algorithm does not exist for the op or cannot give the requested order
// (it names those that can).
Plan make_plan(const Request& request, Algorithm algorithm);

// What ranks run: make_plan's, and where the request agrees_first nothing is added up and no output
// written before this rank has heard, at first or second hand, that all are in this call.
Plan agreed_plan(const Request& request, Algorithm algorithm);

// The algorithms that make_plan accepts for this request.
std::vector<Algorithm> algorithms_for(const Request& request);

}  // namespace gradring::collectives
