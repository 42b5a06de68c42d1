#include "base/call.h"

#include "base/text.h"

namespace gradring {

std::string_view name(OpKind op) {
  switch (op) {
    case OpKind::kBarrier: return "barrier";
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kReduceScatter: return "reduce_scatter";
    case OpKind::kAllGather: return "all_gather";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kReduce: return "reduce";
    case OpKind::kGather: return "gather";
    case OpKind::kScatter: return "scatter";
    case OpKind::kAllToAll: return "all_to_all";
    case OpKind::kSend: return "send";
    case OpKind::kRecv: return "recv";
    case OpKind::kSplit: return "split";
    case OpKind::kShrink: return "shrink";
  }
  return "unknown operation";
}

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kRing: return "ring";
    case Algorithm::kDoubling: return "doubling";
    case Algorithm::kHalving: return "halving";
    case Algorithm::kDirect: return "direct";
    case Algorithm::kGather: return "gather";
    case Algorithm::kFlat: return "flat";
    case Algorithm::kHierarchical: return "hierarchical";
  }
  return "unknown algorithm";
}

namespace {

bool has_reduce_op(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kReduceScatter || op == OpKind::kReduce;
}

std::string arguments(const Call& call) {
  if (call.op == OpKind::kBarrier || call.op == OpKind::kSplit) return "";
  std::string text(name(call.dtype));
  // In an all_to_all each rank has counts of its own.
  if (call.op != OpKind::kAllToAll) text += str(" x ", call.count);
  if (has_reduce_op(call.op)) text += str(", ", name(call.reduce_op));
  if (call.root >= 0) text += str(", root ", call.root);
  if (call.counts_hash != 0)
    text += str(", counts of hash ", std::hex, call.counts_hash & 0xffff, std::dec);
  const auto algorithm = static_cast<Algorithm>(call.algorithm & kAlgorithmBits);
  if (algorithm != Algorithm::kAuto) text += str(", algorithm ", name(algorithm));
  if ((call.algorithm & kInRankOrder) != 0) text += ", rank_order";
  return text;
}

// As the user knows it, and what of that this is.
std::string title(const Call& call) {
  switch (static_cast<StepOf>((call.algorithm & kStepOfBits) >> kStepOfShift)) {
    case StepOf::kNothing: return std::string(name(call.op));
    case StepOf::kSplit: return str("split: ", name(call.op));
    case StepOf::kEmpty: return str("empty: ", name(call.op));
    case StepOf::kGrow: return str("grow: ", name(call.op));
    case StepOf::kAllReduceCompressed:
      if (call.op == OpKind::kAllReduce) return "all_reduce_compressed";  // All of it.
      return str("all_reduce_compressed: ", name(call.op));
  }
  return str("a step of an unknown operation: ", name(call.op));
}

}  // namespace

std::string describe(const Call& call) {
  return str(title(call), "(", arguments(call), ")");
}

std::string describe(const Call& call, std::uint64_t seq) {
  const std::string inside = arguments(call);
  if (inside.empty()) return str(title(call), " #", seq);
  return str(title(call), " #", seq, " (", inside, ")");
}

std::string advice_on(const Call& one, const Call& other) {
  Call same_count = other;
  same_count.count = one.count;
  if (one.op != OpKind::kAllGather || one == other || one != same_count) return "";
  return "; sizes that differ are given to all ranks as counts=, or told by all_gather_rows()";
}

}  // namespace gradring
