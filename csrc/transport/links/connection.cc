#include "transport/links/connection.h"

#include <poll.h>

#include "base/error.h"

namespace gradring::transport {

void Connection::reset() {
  tls_.reset();
  fd_.reset();
}

Fd Connection::take_fd() {
  GRADRING_ASSERT(!is_encrypted());
  return std::move(fd_);
}

void Connection::encrypt(const std::string& secret, Tls::End end) {
  tls_ = std::make_unique<Tls>(fd_.get(), secret, end);
}

Io Connection::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  return tls_ ? tls_->send_some(head, body) : transport::send_some(fd_.get(), head, body);
}

Io Connection::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  return tls_ ? tls_->recv_some(head, body) : transport::recv_some(fd_.get(), head, body);
}

short Connection::events(bool reads, bool writes) const {
  if (tls_) return tls_->events(reads, writes);
  return static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
}

bool Connection::wait_readable(Time deadline) const {
  return may_hold_input() || wait_for(fd_.get(), events(true, false), deadline);
}

bool Connection::wait_writable(Time deadline) const {
  return wait_for(fd_.get(), events(false, true), deadline);
}

void Connection::send_all(std::span<const std::byte> bytes, Time deadline) {
  while (!bytes.empty()) {
    const Io io = send_some(bytes);
    if (io.closed) throw ProtocolError(str(peer_text(get()), " closed the connection"));
    bytes = bytes.subspan(io.bytes);
    if (io.bytes == 0 && !wait_writable(deadline))
      throw TimedOut(str("no answer from ", peer_text(get())));
  }
}

void Connection::recv_all(std::span<std::byte> bytes, Time deadline) {
  while (!bytes.empty()) {
    const Io io = recv_some(bytes);
    if (io.closed) throw ProtocolError(str(peer_text(get()), " closed the connection"));
    bytes = bytes.subspan(io.bytes);
    if (io.bytes == 0 && !wait_readable(deadline))
      throw TimedOut(str("no answer from ", peer_text(get())));
  }
}

}  // namespace gradring::transport
