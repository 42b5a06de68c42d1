// Runs the plans of a whole group in one thread over in-memory links: the obvious reading of
// plan.h, against which the planners are tested. A seed decides which rank does what next and how
// much of a send or receive gets through at a time; only the rules of plan.h hold it back (order
// per peer, dependencies). A failing seed replays exactly.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/plan/plan.h"
#include "support/collectives/plan_cases.h"

namespace gradring::testing {

struct Schedule {
  std::uint64_t seed = 1;
  std::size_t link_bytes = 1 << 16;  // What a link holds before its sender must wait. At least 1.
};

// Plays the plans to the end. Returns what went wrong, or nothing: ranks that wait for each other,
// bytes that nobody received, output written before every contributing rank was heard from (in
// operations small enough for that rule).
std::string play(const PlanCase& c, std::span<const collectives::Plan> plans,
                 std::vector<Memory>& memory, const Schedule& schedule);

}  // namespace gradring::testing
