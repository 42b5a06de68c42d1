#include "transport/joining/control_frames.h"

#include <cstdint>
#include <vector>

#include "base/config.h"
#include "base/error.h"

namespace gradring::transport {

void send_payload(Connection& to, std::span<const std::byte> payload, Time deadline) {
  const auto length = static_cast<std::uint32_t>(payload.size());
  to.send_all(std::as_bytes(std::span(&length, 1)), deadline);
  to.send_all(payload, deadline);
}

void send_frame(Connection& to, const wire::Message& message, Time deadline) {
  send_payload(to, wire::encode(message), deadline);
}

wire::Message recv_frame(Connection& from, Time deadline) {
  std::uint32_t length = 0;
  from.recv_all(std::as_writable_bytes(std::span(&length, 1)), deadline);
  if (length > limits::kControlFrameBytes)
    throw ProtocolError(str("a control message of ", length, " bytes is over the limit of ",
                            limits::kControlFrameBytes));
  std::vector<std::byte> payload(length);
  from.recv_all(payload, deadline);
  return wire::decode_message(payload);
}

}  // namespace gradring::transport
