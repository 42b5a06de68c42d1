// Which algorithm to use: a small cost model over what every rank knows, so that all ranks choose
// alike. Pure functions. The order of additions is settled before (order_for); the model only picks
// among algorithms that give it.
#pragma once

#include "base/link_costs.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

// Measured with 4 ranks on 2 cores over loopback TCP. A real network has less of both latency (no
// shared cores) and bandwidth; their ratio, which decides, is close.
LinkCosts loopback_costs();
// The same machine, ranks linked by rings in shared memory.
LinkCosts shared_memory_costs();
// What the profile says of the transport, else the defaults.
LinkCosts costs_of(const CostProfile& profile, bool has_shared_memory);

// The defaults for ranks of hosts that are at least so far from each other, one way. Near ones, as
// those of a room, are what the defaults are for.
LinkCosts costs_at(const LinkCosts& near, double path_us);

// What ways whose steps take so long hold where they carry 10 Gbit/s: for Request::pieces_on_way.
// More than a way carries costs only memory, and less what a whole way takes, again and again.
std::uint16_t pieces_on_way(const LinkCosts& costs);

// The cheapest of algorithms_for(request). Throws InvalidArgument when there is none.
Algorithm choose(const Request& request, const LinkCosts& costs);

// How long the model believes the slowest rank takes. Good for comparing, not for promising.
double estimate_us(const Request& request, Algorithm algorithm, const LinkCosts& costs);

}  // namespace gradring::collectives
