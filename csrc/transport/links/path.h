// How long the way to another host is, as this kernel has measured it on a connection that is there
// anyway.
#pragma once

#include <cstdint>

namespace gradring::transport {

// Microseconds one way: half of the shortest round trip of a TCP connection so far. 0 where the
// kernel does not say, and of other sockets.
std::uint32_t path_us(int fd);

}  // namespace gradring::transport
