// What this machine is: which ranks can share memory with us, and which of its addresses the others
// should use.
#pragma once

#include <string>

namespace gradring::transport {

// Equal for two processes exactly when they run under one kernel and in one network name space, so
// that an abstract Unix socket connects them and a memory file can be passed.
std::string host_key();

// The address of the interface that `interface` names ("eth0") or contains ("10.1.0.0/16",
// "fd00::/8"). Throws InvalidArgument that lists what there is.
std::string interface_address(const std::string& interface);

}  // namespace gradring::transport
