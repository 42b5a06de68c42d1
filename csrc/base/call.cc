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

namespace {

bool has_reduce_op(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kReduceScatter || op == OpKind::kReduce;
}

std::string arguments(const Call& call) {
  if (call.op == OpKind::kBarrier || call.op == OpKind::kSplit) return "";
  std::string text = str(name(call.dtype), " x ", call.count);
  if (has_reduce_op(call.op)) text += str(", ", name(call.reduce_op));
  if (call.root >= 0) text += str(", root ", call.root);
  if (call.counts_hash != 0) text += str(", counts ", std::hex, call.counts_hash & 0xffff);
  if (call.algorithm != 0) text += str(", algorithm ", int{call.algorithm});
  return text;
}

}  // namespace

std::string describe(const Call& call) {
  return str(name(call.op), "(", arguments(call), ")");
}

std::string describe(const Call& call, std::uint64_t seq) {
  const std::string inside = arguments(call);
  if (inside.empty()) return str(name(call.op), " #", seq);
  return str(name(call.op), " #", seq, " (", inside, ")");
}

}  // namespace gradring
