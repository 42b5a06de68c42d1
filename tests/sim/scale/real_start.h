// Real ranks, as threads of one process over loopback TCP: how long meeting, a first collective and
// closing take. For gradring_scale --real; times of this machine, which nothing compares.
#pragma once

#include <ostream>

#include "base/types.h"

namespace gradring::sim {

// A rank that fails ends the program. Each takes about 15 descriptors and 3 threads.
void start_for_real(Rank ranks, std::ostream& out);

}  // namespace gradring::sim
