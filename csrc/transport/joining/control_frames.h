// Control messages over a blocking socket, as ranks that meet send them: whole, before `deadline`.
// Throw TimedOut, and ProtocolError where the connection ends or what comes is no message.
#pragma once

#include <cstddef>
#include <span>

#include "base/clock.h"
#include "transport/links/connection.h"
#include "wire/messages.h"

namespace gradring::transport {

void send_frame(Connection& to, const wire::Message& message, Time deadline);
// One that is encoded already, for several.
void send_payload(Connection& to, std::span<const std::byte> payload, Time deadline);
wire::Message recv_frame(Connection& from, Time deadline);

}  // namespace gradring::transport
