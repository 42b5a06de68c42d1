// Passes a descriptor over a Unix socket, with one byte of data to carry it. Throws TimedOut, or
// ProtocolError where the other process is gone or sends anything else.
#pragma once

#include "base/clock.h"
#include "transport/links/fd.h"

namespace gradring::transport {

void send_fd(int socket, int fd, Time deadline);
Fd recv_fd(int socket, Time deadline);

}  // namespace gradring::transport
