// A Link moves bytes between two ranks, in order, both ways, or fails: over TCP, a shared-memory
// ring, or the simulator. It never blocks and knows nothing of messages. Owned by whichever thread
// drives the communicator's lane (under the lane's lock).
#pragma once

#include <span>
#include <string>

#include "transport/links/socket.h"

namespace gradring::transport {

class Link {
 public:
  virtual ~Link() = default;

  // Takes what fits from `head`, then `body`. Io::closed: nothing more will ever be taken.
  virtual Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) = 0;
  // Fills `head`, then `body`. Io::closed: everything the peer sent has been delivered and it is
  // gone.
  virtual Io recv_some(std::span<std::byte> head, std::span<std::byte> body) = 0;

  // Before sleeping: asks for a wake-up through fd(). False if the wait would be pointless because
  // something can be done already.
  virtual bool prepare_sleep(bool wants_recv, bool wants_send) = 0;
  virtual void finish_sleep() = 0;
  virtual int fd() const = 0;  // To poll; -1 in the simulator.
  virtual short poll_events(bool wants_recv, bool wants_send) const = 0;

  // Nothing more will be sent: the peer gets what was sent, then the end.
  virtual void hang_up() {}

  virtual std::string peer_address() const = 0;  // For errors: "10.0.0.3:41822", "shared memory".
};

}  // namespace gradring::transport
