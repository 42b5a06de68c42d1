// Link over one TCP connection that has passed the handshake.
#pragma once

#include "transport/link.h"

namespace gradring::transport {

class TcpLink final : public Link {
 public:
  explicit TcpLink(Fd fd);

  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) override;
  void hang_up() override;
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override;
  bool prepare_sleep(bool, bool) override { return true; }
  void finish_sleep() override {}
  int fd() const override { return fd_.get(); }
  short poll_events(bool wants_recv, bool wants_send) const override;
  std::string peer_address() const override { return peer_; }

 private:
  Fd fd_;
  std::string peer_;  // Read once: a closed socket has no peer name any more.
};

}  // namespace gradring::transport
