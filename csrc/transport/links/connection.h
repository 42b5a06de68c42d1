// Connection: a connected socket with one owner, encrypted or not. Never blocks, except where a
// deadline is given.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/links/fd.h"
#include "transport/links/socket.h"
#include "transport/links/tls.h"

namespace gradring::transport {

class Connection {
 public:
  Connection() = default;
  Connection(Fd fd) : fd_(std::move(fd)) {}

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset();
  Fd take_fd();  // Of one that is not encrypted.

  // From now on; nothing has been sent or received before.
  void encrypt(const std::string& secret, Tls::End end);
  bool is_encrypted() const { return tls_ != nullptr; }

  // As of sockets, or of Tls.
  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body = {});
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body = {});
  // What to poll it for, and whether a poll may know nothing of what there is to read.
  short events(bool reads, bool writes) const;
  bool may_hold_input() const { return tls_ && tls_->may_hold_input(); }

  // Whole messages, for hand-shakes and rendezvous. Throw TimedOut or ProtocolError ("... closed
  // ...").
  void send_all(std::span<const std::byte> bytes, Time deadline);
  void recv_all(std::span<std::byte> bytes, Time deadline);
  // False when the deadline passed.
  bool wait_readable(Time deadline) const;
  bool wait_writable(Time deadline) const;

 private:
  Fd fd_;
  std::unique_ptr<Tls> tls_;  // Null: not encrypted.
};

}  // namespace gradring::transport
