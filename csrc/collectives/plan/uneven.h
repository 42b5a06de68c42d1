// How a long all_reduce is divided where hosts' links have different rates. Sent directly, a rank
// that owns a part of the vector sends the rest of its own vector and its finished part to all
// others; one that owns nothing sends its vector once, where a ring would have it send nearly
// twice as much. So slow links own less. Pure functions of what all ranks know.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/plan/plan.h"

namespace gradring::collectives {

// Elements that each rank should own, for links that send at `rates`, by rank, in any one unit.
// Empty: an even cut takes no longer, or not much.
std::vector<std::uint64_t> uneven_shares(std::uint64_t count, std::span<const double> rates);

}  // namespace gradring::collectives
