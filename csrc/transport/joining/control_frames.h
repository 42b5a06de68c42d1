// Control messages over a blocking socket, as ranks that meet send them: whole, before `deadline`.
// Throw TimedOut, and ProtocolError where the connection ends or what comes is no message.
#pragma once

#include <cstddef>
#include <span>

#include "base/clock.h"
#include "wire/messages.h"

namespace gradring::transport {

void send_frame(int fd, const wire::Message& message, Time deadline);
// One that is encoded already, for several.
void send_payload(int fd, std::span<const std::byte> payload, Time deadline);
wire::Message recv_frame(int fd, Time deadline);

}  // namespace gradring::transport
