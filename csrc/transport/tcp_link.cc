#include "transport/tcp_link.h"

#include <poll.h>
#include <sys/socket.h>

namespace gradring::transport {

TcpLink::TcpLink(Fd fd) : fd_(std::move(fd)), peer_(peer_text(fd_.get())) {
  tune_data_socket(fd_.get());
}

Io TcpLink::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  return transport::send_some(fd_.get(), head, body);
}

Io TcpLink::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  return transport::recv_some(fd_.get(), head, body);
}

void TcpLink::hang_up() {
  // Not close(): what we have not read would reset the connection and take our last bytes with it.
  ::shutdown(fd_.get(), SHUT_WR);
}

short TcpLink::poll_events(bool wants_recv, bool wants_send) const {
  return static_cast<short>((wants_recv ? POLLIN : 0) | (wants_send ? POLLOUT : 0));
}

}  // namespace gradring::transport
