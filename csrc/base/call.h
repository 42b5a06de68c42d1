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

struct Call {
  OpKind op = OpKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::uint8_t algorithm =
      0;           // The caller's override (collectives::Algorithm); 0 where the library chooses.
  Rank root = -1;  // -1 where the operation has none.
  std::uint64_t count = 0;  // Elements.
  std::uint64_t counts_hash =
      0;  // Of the list of counts per rank, where all ranks must pass the same; else 0.

  friend bool operator==(const Call&, const Call&) = default;
};

// "all_reduce(float32 x 1048576, sum)": without the sequence number.
std::string describe(const Call& call);
// "all_reduce #17 (float32 x 1048576, sum)": as errors show it.
std::string describe(const Call& call, std::uint64_t seq);

}  // namespace gradring
