// What is done to tables besides pushes, while others push: ticks, shrinks, other settings of a
// rule, whole rows written. Of the table whose rows are compared with what the log says, at the end
// and in every checkpoint. Used by the counting program.
#pragma once

#include "ps/client/rule_change.h"
#include "sim/ps/client.h"
#include "sim/ps/world.h"

namespace gradring::sim {

struct Upkeep {
  CallPtr call;
  std::shared_ptr<ps::RuleChange> rules = nullptr;  // If it is one.
};
Upkeep submit_upkeep(PsClient& client, PsWorld& world);
// It has succeeded. What is still to be done, and submitted; else without a call.
Upkeep go_on_with(const Upkeep& upkeep, PsClient& client, PsWorld& world);

}  // namespace gradring::sim
