#include "sim/collectives/scenario.h"

#include <algorithm>

#include "base/text.h"

namespace gradring::sim {
namespace {

using collectives::Algorithm;
using collectives::Order;
using testing::PlanCase;

bool has_root(OpKind op) {
  return op == OpKind::kBroadcast || op == OpKind::kReduce || op == OpKind::kGather ||
         op == OpKind::kScatter;
}

std::uint64_t draw_count(Dice& dice, Rank ranks) {
  const std::uint64_t n = static_cast<std::uint64_t>(ranks);
  switch (dice.below(10)) {
    case 0: return dice.below(3);
    case 1: return n - 1 + dice.below(3);
    case 2: return 40'000 + dice.below(3000);  // Several pieces, and no rule about small calls.
    case 3: return ranks <= 4 && dice.percent(30) ? 160'000 + dice.below(9) : dice.below(2000);
    default: return dice.below(600);
  }
}

void draw_algorithm(Dice& dice, PlanCase& c) {
  c.algorithm = dice.one_of(collectives::algorithms_for(c.requests().front()));
}

PlanCase draw_case(Dice& dice, Rank ranks) {
  PlanCase c;
  c.op = static_cast<OpKind>(dice.below(9));  // The collectives come first.
  if (dice.percent(35)) c.op = OpKind::kAllReduce;
  c.world_size = ranks;
  c.count = c.op == OpKind::kBarrier ? 0 : draw_count(dice, ranks);
  c.order = collectives::reduces(c.op) ? static_cast<Order>(dice.below(3)) : Order::kRing;
  c.root = static_cast<Rank>(dice.below(static_cast<std::uint64_t>(ranks)));
  do {
    c.dtype = dice.percent(50) ? DType::kFloat32 : static_cast<DType>(dice.below(kDTypeCount));
    c.reduce_op = static_cast<ReduceOp>(dice.below(kReduceOpCount));
  } while (!is_defined(c.dtype, c.reduce_op));
  const bool has_parts =
      c.op == OpKind::kReduceScatter || c.op == OpKind::kAllGather || c.op == OpKind::kAllToAll;
  c.has_uneven_counts = has_parts && dice.percent(30);
  c.is_in_place = c.op != OpKind::kAllToAll && dice.percent(50);
  draw_algorithm(dice, c);
  return c;
}

// Always differs from `right` in what ranks must agree on.
PlanCase draw_wrong_case(Dice& dice, const PlanCase& right) {
  PlanCase wrong = right;
  const auto call_another = [&] {
    do {
      wrong.op = static_cast<OpKind>(dice.below(9));
    } while (wrong.op == right.op);
  };
  switch (dice.below(5)) {
    case 0: wrong.count += 1 + dice.below(5); break;
    case 1: wrong.dtype = right.dtype == DType::kFloat32 ? DType::kInt32 : DType::kFloat32; break;
    case 2:
      if (!has_root(right.op)) call_another();
      wrong.root = (right.root + 1) % right.world_size;
      break;
    case 3:
      if (!collectives::reduces(right.op)) call_another();
      wrong.reduce_op = right.reduce_op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
      break;
    default: call_another();
  }
  if (!is_defined(wrong.dtype, wrong.reduce_op)) wrong.reduce_op = ReduceOp::kSum;
  if (wrong.op == OpKind::kBarrier) wrong.count = 0;
  if (right.op == OpKind::kBarrier && wrong.op == OpKind::kBarrier) wrong.op = OpKind::kAllReduce;
  if (right.op == OpKind::kAllToAll && wrong.op == OpKind::kAllToAll) wrong.op = OpKind::kAllGather;
  wrong.has_uneven_counts = false;
  wrong.is_in_place = wrong.is_in_place && wrong.op != OpKind::kAllToAll;
  draw_algorithm(dice, wrong);
  return wrong;
}

Fault draw_fault(Dice& dice, const Scenario& scenario) {
  const auto world = static_cast<std::uint64_t>(scenario.world_size);
  Fault fault;
  fault.kind = static_cast<FaultKind>(dice.below(kFaultKinds));
  // The coordinator is where the protocol is hardest.
  fault.rank = dice.percent(30) ? 0 : static_cast<Rank>(dice.below(world));
  fault.other = static_cast<Rank>(dice.below(world));
  if (fault.kind == FaultKind::kCutPair && fault.other == fault.rank)
    fault.other = (fault.rank + 1) % scenario.world_size;
  fault.byte = dice.percent(30) ? dice.below(80) : dice.below(60'000);
  fault.operation = dice.below(scenario.operations.size());
  fault.after = dice.any_magnitude(Micros{2'000'000});
  const Micros heartbeat = scenario.heartbeat_timeout;
  // Either too short for anybody to be given up, or anything.
  if (fault.kind == FaultKind::kStorm || dice.percent(30))
    fault.duration = dice.between(Micros{1}, heartbeat * 4 / 10);
  else if (dice.percent(50))
    fault.duration = dice.between(heartbeat / 2, heartbeat * 3);
  return fault;
}

void draw_members(Dice& dice, Scenario& scenario) {
  for (Rank rank = 0; rank < scenario.world_size; ++rank) scenario.members.push_back(rank);
  if (scenario.world_size < 3 || dice.percent(70)) return;
  // A communicator that was split off.
  for (std::size_t left = 1 + dice.below(scenario.members.size() - 2); left > 0; --left)
    scenario.members.erase(scenario.members.begin() +
                           static_cast<std::ptrdiff_t>(dice.below(scenario.members.size())));
}

}  // namespace

std::string_view name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill: return "kill";
    case FaultKind::kFreeze: return "freeze";
    case FaultKind::kCutOff: return "cut off";
    case FaultKind::kLeave: return "leave";
    case FaultKind::kDropData: return "drop data connection";
    case FaultKind::kDropControl: return "drop control connection";
    case FaultKind::kStorm: return "storm";
    case FaultKind::kCutPair: return "cut pair";
  }
  return "unknown";
}

Scenario scenario_of(std::uint64_t seed) {
  Dice dice(seed * 0x9E3779B97F4A7C15u + 1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.world_size = dice.percent(4) ? 16 : static_cast<Rank>(1 + dice.below(8));
  draw_members(dice, scenario);
  const auto ranks = static_cast<Rank>(scenario.members.size());
  scenario.heartbeat_timeout = dice.one_of<Millis>({Millis{1000}, Millis{2000}, Millis{5000}});
  for (std::size_t left = 3 + dice.below(8); left > 0; --left)
    scenario.operations.push_back(draw_case(dice, ranks));
  if (ranks > 1 && dice.percent(20)) {
    const std::size_t at = dice.below(scenario.operations.size());
    scenario.wrong_call = {static_cast<Rank>(dice.below(static_cast<std::uint64_t>(ranks))), at,
                           draw_wrong_case(dice, scenario.operations[at])};
  }
  static const std::vector<std::size_t> kFaultCounts{0, 0, 1, 1, 1, 1, 2, 2, 3, 4};
  for (std::size_t left = dice.one_of(kFaultCounts); left > 0 && scenario.world_size > 1; --left)
    scenario.faults.push_back(draw_fault(dice, scenario));
  scenario.leaves_when_done = dice.percent(50);
  scenario.leaves_when_failed = dice.percent(40);
  scenario.shrinks = !scenario.leaves_when_failed && dice.percent(50);
  scenario.longest_pause = dice.any_magnitude(Micros{500'000});
  // Not drawn: what other seeds say stays as it was before there were any.
  if (seed % 6 == 5) scenario.streams = 2 + seed / 6 % 3;
  scenario.link_bytes = dice.one_of<std::size_t>({7 + dice.below(60), 100, 5000, 1 << 16, 1 << 20});
  // Long vectors over tiny links only take time.
  for (const PlanCase& c : scenario.operations)
    scenario.link_bytes = std::max(scenario.link_bytes, c.count * item_bytes(c.dtype) / 100);
  scenario.short_percent = static_cast<std::uint32_t>(dice.below(60));
  scenario.max_delay = dice.any_magnitude(Micros{5000});
  // Long enough for the heartbeat to speak first, or so short that waiting for a frozen rank ends.
  scenario.operation_timeout = dice.percent(80) ? scenario.heartbeat_timeout * 6 + Millis{20'000}
                                                : Millis{300 + dice.below(1000)};
  return scenario;
}

std::string Scenario::text() const {
  std::string text = str("seed ", seed, ": ", world_size, " ranks, communicator of");
  for (const Rank member : members) text += str(' ', member);
  text += str("; heartbeat timeout ", heartbeat_timeout.count(), " ms, operation timeout ",
              operation_timeout.count(), " ms, links of ", streams, " x ", link_bytes,
              " bytes, delay up to ", max_delay.count(), " us, ", short_percent, "% short");
  if (leaves_when_done) text += ", leaves when done";
  if (leaves_when_failed) text += ", leaves when failed";
  if (shrinks) text += ", shrinks";
  for (std::size_t i = 0; i < operations.size(); ++i)
    text += str("\n  operation ", i, ": ", operations[i].text());
  if (wrong_call)
    text += str("\n  rank ", wrong_call->rank, " of the communicator calls instead of operation ",
                wrong_call->operation, ": ", wrong_call->called.text());
  for (const Fault& fault : faults) {
    text += str("\n  ", name(fault.kind), ": rank ", fault.rank);
    if (fault.kind == FaultKind::kCutPair) text += str(" - rank ", fault.other);
    if (fault.kind == FaultKind::kDropData)
      text += str(" - rank ", fault.other, " at byte ", fault.byte);
    else
      text += str(", ", fault.after.count(), " us after it began operation ", fault.operation);
    if (fault.duration) text += str(", for ", fault.duration->count(), " us");
  }
  return text;
}

}  // namespace gradring::sim
