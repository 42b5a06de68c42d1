// What starting, watching and ending a job costs by number of ranks: the messages and bytes that
// the real Membership and the wire format make of it, counted at rank 0 and at another rank. For
// gradring_scale and the tests. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace gradring::sim {

struct Phase {
  std::string_view name;
  // Sent by rank 0, the coordinator, in all; and by each other rank.
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t follower_messages = 0;
  std::uint64_t follower_bytes = 0;
};

// Joining; one beat of heartbeats; one rank that dies; all ranks closing one communicator of
// theirs; all ranks leaving the job but rank 0, which leaves last.
std::vector<Phase> count_start_up(Rank ranks);

// A control connection to rank 0 is all that a rank has before its first collective; rank 0 has the
// other ends.
std::uint64_t connections_after_joining(Rank rank, Rank ranks);
// What the table of members takes in each rank's memory.
std::uint64_t member_table_bytes(Rank ranks);

}  // namespace gradring::sim
