// The rules of plan.h that can be seen in one rank's plan alone, whatever the schedule. Used by the
// plan tests.
#pragma once

#include <string>

#include "collectives/plan/plan.h"
#include "support/collectives/plan_cases.h"

namespace gradring::testing {

// The first rule that `plan` breaks, or nothing: well-formed actions and edges, every access inside
// its buffer, no write to input, and no two unordered actions that touch the same bytes when one of
// them writes. `memory` says where input and output overlap.
std::string broken_rule(const collectives::Plan& plan, const Memory& memory, Rank rank,
                        Rank world_size);

}  // namespace gradring::testing
