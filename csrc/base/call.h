// What a rank called: the part of a collective that every rank must agree on. Plain values;
// compared to find mismatched calls (promise P3), carried in op headers and heartbeats, and shown
// in every error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.h"

namespace gradring {

// The values are part of the wire format: append, never renumber.
enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kReduce = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kSend = 9,
  kRecv = 10,
  kSplit = 11,
  kShrink = 12,
};
inline constexpr std::size_t kOpKindCount = 13;
std::string_view name(OpKind op);  // "all_reduce", ...

enum class Algorithm : std::uint8_t {
  kAuto = 0,
  kRing = 1,      // Patarasuk and Yuan: 2(n-1) steps, each byte moved 2(n-1)/n times.
  kDoubling = 2,  // Recursive doubling (all_reduce) and Bruck's all_gather: log2(n) steps.
  // Halving-doubling (Rabenseifner; Thakur et al.): 2 log2(n) steps, the ring's bytes; the first
  // half of them for reduce_scatter and reduce.
  kHalving = 3,
  kDirect = 4,  // Every rank to every rank at once: 2 steps, ring's bytes, n-1 links.
  kGather = 5,  // Everybody gets everything and folds it: one step for small messages in any order.
  kFlat = 6,    // Through one shared-memory segment (collectives/flat/flat.h); has no Plan.
  // Inside each host first, then between hosts (collectives/engine/hierarchy.h); has no own Plan.
  kHierarchical = 7,
};
std::string_view name(Algorithm algorithm);
// What the user called where a collective is only a step of that.
enum class StepOf : std::uint8_t {
  kNothing = 0,
  kSplit = 1,
  kEmpty = 2,
  kAllReduceCompressed = 3,
  kGrow = 4,
};
// In Call::algorithm, beside an Algorithm: what the collective is a step of, and additions in rank
// order.
inline constexpr unsigned kAlgorithmBits = 0x0f;
inline constexpr unsigned kStepOfShift = 4;
inline constexpr unsigned kStepOfBits = 0x70;
inline constexpr unsigned kInRankOrder = 0x80;
constexpr std::uint8_t step_of(StepOf what) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(what) << kStepOfShift);
}

struct Call {
  OpKind op = OpKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::uint8_t algorithm = 0;  // What the caller has chosen: an Algorithm, and more.
  Rank root = -1;              // -1 where the operation has none.
  std::uint64_t count = 0;     // Elements.
  std::uint64_t counts_hash =
      0;  // Of the list of counts per rank, where all ranks must pass the same; else 0.

  friend bool operator==(const Call&, const Call&) = default;
};

// "all_reduce(float32 x 1048576, sum)": without the sequence number.
std::string describe(const Call& call);
// "all_reduce #17 (float32 x 1048576, sum)": as errors show it.
std::string describe(const Call& call, std::uint64_t seq);
// "; ...": what to call instead where ranks differ in what another call lets them; else "".
std::string advice_on(const Call& one, const Call& other);

}  // namespace gradring
