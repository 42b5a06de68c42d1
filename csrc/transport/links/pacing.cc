#include "transport/links/pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "transport/links/fd.h"

namespace gradring::transport {
namespace {

constexpr std::string_view kUnpaced = "reno";  // Every kernel has it, and everybody may ask for it.

std::string control_of(int fd) {
  std::array<char, 16> text{};  // TCP_CA_NAME_MAX
  socklen_t length = text.size();
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text.data(), &length) != 0) return {};
  return {text.data(), ::strnlen(text.data(), length)};
}

void ask_for(int fd, std::string_view control) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control.data(),
               static_cast<socklen_t>(control.size()));
}

// IPv4 in its IPv6 form; of a Unix socket nothing.
in6_addr ip_of(const sockaddr_storage& address) {
  in6_addr ip{};
  if (address.ss_family == AF_INET6) ip = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (address.ss_family == AF_INET) {
    ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
    std::memcpy(ip.s6_addr + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return ip;
}

bool is_loopback_ip(const in6_addr& ip) {
  return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
}

}  // namespace

bool is_within_host(int fd) {
  sockaddr_storage mine{};
  sockaddr_storage theirs{};
  socklen_t mine_length = sizeof mine;
  socklen_t their_length = sizeof theirs;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &mine_length) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &their_length) != 0)
    return false;
  const in6_addr here = ip_of(mine);
  const in6_addr there = ip_of(theirs);
  return is_loopback_ip(there) || IN6_ARE_ADDR_EQUAL(&here, &there);
}

bool is_unix(int fd) {
  sockaddr_storage mine{};
  socklen_t length = sizeof mine;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0 &&
         mine.ss_family == AF_UNIX;
}

bool leads_to_this_host(const addrinfo& entry) {
  // Connecting a datagram socket sends nothing: it asks for the route.
  const Fd probe(::socket(entry.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return probe && ::connect(probe.get(), entry.ai_addr, entry.ai_addrlen) == 0 &&
         is_within_host(probe.get());
}

void start_unpaced(int fd) {
  ask_for(fd, kUnpaced);
}

void pace_as_system(int fd) {
  if (control_of(fd) != kUnpaced) return;  // The route's, which comes first.
  const Fd fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (const std::string system = control_of(fresh.get()); !system.empty()) ask_for(fd, system);
}

}  // namespace gradring::transport
