// From a host's name to addresses. A look-up may take half a minute where a name server is silent,
// and nothing can end it: who waits under a deadline leaves it behind, and finds it again if it
// asks for the same name anew.
#pragma once

#include <netdb.h>

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "transport/links/socket.h"

struct sockaddr_in6;

namespace gradring::transport {

using AddressList = std::shared_ptr<const addrinfo>;

// Null where it does not resolve. `flags` as getaddrinfo's. As long as the system takes.
AddressList resolve(const HostPort& address, int flags);

using Lookup = std::function<AddressList(const HostPort&)>;

// Null, and why, if it does not resolve, or has not by then. `look_up` runs in a thread of its own,
// once at a time for each address.
AddressList resolve_by(const HostPort& address, Time deadline, std::string& why,
                       const Lookup& look_up);
AddressList resolve_by(const HostPort& address, Time deadline, std::string& why);

// "%eth0": a link-local address means nothing without the link that it is of. Else nothing.
std::string scope_text(const sockaddr_in6& address);
// Behind an error that says that there are no descriptors left: which limit to look at. Else "".
std::string limit_hint(int error, const char* whose = "this");
// Why an address cannot be listened at, or connected to.
std::string address_problem(int error, const addrinfo& entry);
// The same of an attempt to connect to it, which a route may forbid.
std::string connect_problem(int error, const addrinfo& entry);

// An address that led nowhere, and why.
struct TriedAddress {
  const addrinfo* entry;
  std::string why;
};
// Of a name's addresses each is named, as one of several networks may be dead; unless all are
// alike.
std::string why_none_answered(std::span<const TriedAddress> tried);

}  // namespace gradring::transport
