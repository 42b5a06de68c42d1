// Puts what finds out whether all ranks are in one call into the plan itself: a dissemination
// barrier (Hensgen, Finkel and Manber, 1988) of a byte a round, whose headers carry the call. What
// the plan sends goes with it; only what adds up, or writes output, waits for the last round.

#include <span>
#include <vector>

#include "collectives/plan/operation.h"
#include "collectives/plan/planners.h"

namespace gradring::collectives {
namespace {

// Before each action of a plan those that must come first, as the builder wants them.
std::vector<std::vector<std::uint32_t>> what_comes_before(const Plan& plan) {
  std::vector<std::vector<std::uint32_t>> before(plan.actions.size());
  for (std::uint32_t index = 0; index < plan.actions.size(); ++index) {
    const Action& action = plan.actions[index];
    for (std::uint32_t i = 0; i < action.dependent_count; ++i)
      before[plan.dependents[action.first_dependent + i]].push_back(index);
  }
  return before;
}

bool waits_for_agreement(const Action& action) {
  const bool writes_output = action.at.place == Place::kOutput && action.kind != ActionKind::kSend;
  return writes_output || action.kind == ActionKind::kReduce;
}

}  // namespace

Plan agreed_plan(const Request& request, Algorithm algorithm) {
  Plan plan = make_plan(request, algorithm);
  if (!agrees_first(request, algorithm)) return plan;
  const Rank n = request.world_size;
  PlanBuilder builder;
  builder.scratch(plan.scratch_bytes);  // Where the plan has it.
  const Slice token = builder.scratch(1);
  std::uint32_t heard = PlanBuilder::kNothing;
  std::uint32_t tokens = 0;
  for (Rank distance = 1; distance < n; distance *= 2, tokens += 2) {
    builder.send(wrap(request.rank + distance, n), token, 1, {{heard}});
    heard = builder.recv(wrap(request.rank - distance, n), builder.scratch(1), 1, {{heard}});
  }
  std::vector<std::vector<std::uint32_t>> before = what_comes_before(plan);
  for (std::size_t index = 0; index < plan.actions.size(); ++index) {
    const Action& action = plan.actions[index];
    for (std::uint32_t& earlier : before[index]) earlier += tokens;
    if (waits_for_agreement(action)) before[index].push_back(heard);
    const std::span sources =
        std::span(plan.sources).subspan(action.first_source, action.source_count);
    switch (action.kind) {
      case ActionKind::kSend:
        builder.send(action.peer, action.at, action.bytes, before[index]);
        break;
      case ActionKind::kRecv:
        builder.recv(action.peer, action.at, action.bytes, before[index]);
        break;
      case ActionKind::kCopy:
        builder.copy(action.at, sources.front(), action.bytes, before[index]);
        break;
      case ActionKind::kReduce:
        builder.reduce(action.at, sources, action.bytes, action.fold, action.is_final,
                       before[index]);
        break;
    }
  }
  Plan made = std::move(builder).finish(plan.algorithm);
  made.tokens = tokens;
  return made;
}

}  // namespace gradring::collectives
