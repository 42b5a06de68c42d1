#include "transport/joining/free_port.h"

#include <random>

#include "base/error.h"
#include "base/text.h"
#include "transport/links/socket.h"

namespace gradring::transport {

Fd listen_at_free_port(const std::string& host, const PortRange& ports,
                       const std::function<Fd(int port)>& listen) {
  if (ports.first == 0) return listen(0);
  const int count = ports.last - ports.first + 1;
  // From a place of its own each: ranks of a host start at the same time, and all but one of those
  // that try a port lose it.
  const int start = static_cast<int>(std::random_device{}() % static_cast<unsigned>(count));
  for (int step = 0; step < count; ++step) {
    try {
      return listen(ports.first + (start + step) % count);
    } catch (const AddressTaken&) {
      continue;
    }
  }
  throw InvalidArgument(str("cannot listen on ", host, ": all ", count,
                            " ports of GRADRING_PORTS=", ports.first, "-", ports.last,
                            " are taken; end what listens there, or give a longer range: each rank "
                            "and each server of a host needs a port"));
}

}  // namespace gradring::transport
