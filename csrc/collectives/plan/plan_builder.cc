// PlanBuilder: a growing list of actions and of edges between them, turned into a Plan's flat
// arrays by finish().

#include <algorithm>

#include "base/error.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

namespace {

constexpr std::uint64_t kScratchAlignment = 64;

}  // namespace

std::uint32_t PlanBuilder::send(Rank peer, Slice from, std::uint64_t bytes, After after) {
  return add({.kind = ActionKind::kSend, .peer = peer, .at = from, .bytes = bytes}, after);
}

std::uint32_t PlanBuilder::recv(Rank peer, Slice into, std::uint64_t bytes, After after) {
  return add({.kind = ActionKind::kRecv, .peer = peer, .at = into, .bytes = bytes}, after);
}

std::uint32_t PlanBuilder::copy(Slice into, Slice from, std::uint64_t bytes, After after) {
  if (bytes == 0) return kNothing;
  const auto source = static_cast<std::uint32_t>(plan_.sources.size());
  plan_.sources.push_back(from);
  return add({.kind = ActionKind::kCopy,
              .at = into,
              .bytes = bytes,
              .first_source = source,
              .source_count = 1},
             after);
}

std::uint32_t PlanBuilder::reduce(Slice into, std::span<const Slice> sources, std::uint64_t bytes,
                                  kernels::Fold fold, bool is_final, After after) {
  if (bytes == 0) return kNothing;
  const auto first = static_cast<std::uint32_t>(plan_.sources.size());
  plan_.sources.insert(plan_.sources.end(), sources.begin(), sources.end());
  return add({.kind = ActionKind::kReduce,
              .at = into,
              .bytes = bytes,
              .first_source = first,
              .source_count = static_cast<std::uint32_t>(sources.size()),
              .fold = fold,
              .is_final = is_final},
             after);
}

Slice PlanBuilder::scratch(std::uint64_t bytes) {
  const Slice slice{Place::kScratch, plan_.scratch_bytes};
  plan_.scratch_bytes += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  return slice;
}

std::uint32_t PlanBuilder::add(Action action, After after) {
  if (action.bytes == 0) return kNothing;
  const auto index = static_cast<std::uint32_t>(plan_.actions.size());
  const auto first_edge = static_cast<std::ptrdiff_t>(edges_.size());
  for (const std::uint32_t before : after) {
    if (before == kNothing) continue;
    GRADRING_ASSERT(before < index);
    const std::pair edge{before, index};
    if (std::find(edges_.begin() + first_edge, edges_.end(), edge) == edges_.end()) {
      edges_.push_back(edge);
    }
  }
  action.wait_count =
      static_cast<std::uint32_t>(edges_.size() - static_cast<std::size_t>(first_edge));
  plan_.actions.push_back(action);
  return index;
}

Plan PlanBuilder::finish(Algorithm algorithm) && {
  plan_.algorithm = algorithm;
  for (const auto& [before, after] : edges_) ++plan_.actions[before].dependent_count;
  std::uint32_t next = 0;
  for (Action& action : plan_.actions) {
    action.first_dependent = next;
    next += action.dependent_count;
    action.dependent_count = 0;  // Counted up again below, as the cursor.
  }
  plan_.dependents.resize(edges_.size());
  for (const auto& [before, after] : edges_) {
    Action& action = plan_.actions[before];
    plan_.dependents[action.first_dependent + action.dependent_count++] = after;
  }
  return std::move(plan_);
}

}  // namespace gradring::collectives
