// Processors: how many of a host's the ranks on it may use together: what the launcher, taskset or
// a container leaves them, and no more than their control groups pay for. Where that is fewer than
// there are ranks, waits do not look again before they yield, and messages go other ways.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace gradring::transport {

// Which this process may run on, as in wire::Member; "" where the kernel does not say.
std::string own_processors();

struct Quota {
  std::uint32_t percent = 0;  // Of a processor; 0: none.
  std::string group;          // Which has it, for all that are in it.
};

// The least of those of this process's control group and of the groups that it is in. `own`: what
// /proc/self/cgroup says; `groups`: where control groups are mounted. Both versions of them.
Quota find_quota(const std::string& own, const std::string& groups);

// Tells both of this process.
void describe_processors(wire::Member& self);

// Of the members that have `host_key`, at least 1. Where one of them did not say: those that are
// online.
int usable_processors(const std::vector<wire::Member>& members, const std::string& host_key);

}  // namespace gradring::transport
