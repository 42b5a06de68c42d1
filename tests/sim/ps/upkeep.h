// What is done to tables besides pushes, while others push: ticks, shrinks, other settings of a
// rule, whole rows written. Of the table whose rows are compared with what the log says, at the end
// and in every checkpoint. Used by the counting program.
#pragma once

#include "sim/ps/client.h"
#include "sim/ps/world.h"

namespace gradring::sim {

CallPtr submit_upkeep(PsClient& client, PsWorld& world);
// It has succeeded.
void note_upkeep(const ps::PlainCall& call, PsWorld& world);

}  // namespace gradring::sim
