#include "transport/links/tcp_link.h"

#include <sys/socket.h>

#include <algorithm>

#include "transport/links/traffic.h"

namespace gradring::transport {

TcpLink::TcpLink(Connection connection)
    : connection_(std::move(connection)), peer_(peer_text(connection_.get())) {
  tune_data_socket(connection_.get());
}

Io TcpLink::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  const Io io = connection_.send_some(head, body);
  count(tcp_traffic.sent, io.bytes);
  return io;
}

Io TcpLink::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  if (ahead_.empty()) {
    const bool is_short = !head.empty() && !body.empty() && body.size() <= kShortBytes;
    if (is_short && !connection_.is_encrypted()) return recv_ahead(head, body);
    const Io io = connection_.recv_some(head, body);
    count(tcp_traffic.received, io.bytes);
    return io;
  }
  const std::size_t of_head = std::min(head.size(), ahead_.size());
  const std::size_t of_body = std::min(body.size(), ahead_.size() - of_head);
  std::copy_n(ahead_.data(), of_head, head.data());
  std::copy_n(ahead_.data() + of_head, of_body, body.data());
  ahead_ = ahead_.subspan(of_head + of_body);
  return {of_head + of_body, false};
}

Io TcpLink::recv_ahead(std::span<std::byte> head, std::span<std::byte> body) {
  room_.resize(kAheadBytes);
  const Io io = transport::recv_some(connection_.get(), head, body, room_);
  count(tcp_traffic.received, io.bytes);
  const std::size_t asked = std::min(io.bytes, head.size() + body.size());
  ahead_ = std::span(room_).first(io.bytes - asked);
  return {asked, io.closed};
}

void TcpLink::hang_up() {
  // Not close(): what we have not read would reset the connection and take our last bytes with it.
  ::shutdown(connection_.get(), SHUT_WR);
}

}  // namespace gradring::transport
