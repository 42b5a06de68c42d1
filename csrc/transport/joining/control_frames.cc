#include "transport/joining/control_frames.h"

#include <cstdint>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "transport/links/socket.h"

namespace gradring::transport {

void send_payload(int fd, std::span<const std::byte> payload, Time deadline) {
  const auto length = static_cast<std::uint32_t>(payload.size());
  send_all(fd, std::as_bytes(std::span(&length, 1)), deadline);
  send_all(fd, payload, deadline);
}

void send_frame(int fd, const wire::Message& message, Time deadline) {
  send_payload(fd, wire::encode(message), deadline);
}

wire::Message recv_frame(int fd, Time deadline) {
  std::uint32_t length = 0;
  recv_all(fd, std::as_writable_bytes(std::span(&length, 1)), deadline);
  if (length > limits::kControlFrameBytes)
    throw ProtocolError(str("a control message of ", length, " bytes is over the limit of ",
                            limits::kControlFrameBytes));
  std::vector<std::byte> payload(length);
  recv_all(fd, payload, deadline);
  return wire::decode_message(payload);
}

}  // namespace gradring::transport
