// Link over one TCP connection that has passed the handshake.
#pragma once

#include <vector>

#include "transport/links/connection.h"
#include "transport/links/link.h"

namespace gradring::transport {

class TcpLink final : public Link {
 public:
  explicit TcpLink(Connection connection);

  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) override;
  void hang_up() override;
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override;
  bool prepare_sleep(bool wants_recv, bool) override {
    return !wants_recv || (ahead_.empty() && !connection_.may_hold_input());
  }
  void finish_sleep() override {}
  int fd() const override { return connection_.get(); }
  short poll_events(bool wants_recv, bool wants_send) const override {
    return connection_.events(wants_recv, wants_send);
  }
  std::string peer_address() const override { return peer_; }

 private:
  // Where a whole message is asked for, and a short one: what lies behind it is copied twice.
  static constexpr std::size_t kShortBytes = 4096;
  static constexpr std::size_t kAheadBytes = 16384;

  Io recv_ahead(std::span<std::byte> head, std::span<std::byte> body);

  Connection connection_;
  // What one system call brings of a peer that is messages ahead; unused where TLS keeps that.
  std::vector<std::byte> room_;
  std::span<const std::byte> ahead_;  // In room_: not asked for yet.
  std::string peer_;                  // Read once: a closed socket has no peer name any more.
};

}  // namespace gradring::transport
