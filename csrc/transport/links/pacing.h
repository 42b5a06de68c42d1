// Which congestion control a TCP connection starts with. Inside one host a pacing one (bbr) costs
// 1.3-1.6x the CPU (docs/decisions/0004-congestion-control.md), and the kernel goes on pacing a
// connection that began with it whatever it is given later: so the choice comes before the
// connection. Tuning only: where the kernel refuses, the connection still works.
#pragma once

#include <netdb.h>

namespace gradring::transport {

bool leads_to_this_host(const addrinfo& entry);
bool is_within_host(int fd);  // Also true of a Unix socket.
bool is_unix(int fd);

// Before connect() to this host, and before listen(): who is accepted starts like the listener.
void start_unpaced(int fd);
// Accepted from another host: what the system, or the route to that host, says.
void pace_as_system(int fd);

}  // namespace gradring::transport
