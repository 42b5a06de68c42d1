// Which free port to listen at: any, or one of those that a firewall lets through.
#pragma once

#include <functional>
#include <string>

#include "transport/links/fd.h"

namespace gradring::transport {

// GRADRING_PORTS: both ends belong to it. 0: whatever the kernel gives.
struct PortRange {
  int first = 0;
  int last = 0;
};

// Listens at a free port of `host` by `listen`, which throws AddressTaken where a port is not free.
// Processes that start at once begin at different ports of the range. Throws InvalidArgument when
// all of them are taken, and what else `listen` throws.
Fd listen_at_free_port(const std::string& host, const PortRange& ports,
                       const std::function<Fd(int port)>& listen);

}  // namespace gradring::transport
