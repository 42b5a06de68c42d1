#include "transport/joining/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "transport/joining/handshake.h"

namespace gradring::transport {
namespace {

struct Cidr {
  int family = AF_UNSPEC;
  std::array<unsigned char, 16> bytes{};
  unsigned bits = 0;
};

bool parse_cidr(const std::string& text, Cidr& cidr) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return false;
  const std::string address = text.substr(0, slash);
  const std::string bits = text.substr(slash + 1);
  if (bits.empty() || bits.size() > 3 || bits.find_first_not_of("0123456789") != std::string::npos)
    return false;
  cidr.bits = static_cast<unsigned>(std::stoi(bits));
  for (const int family : {AF_INET, AF_INET6}) {
    if (::inet_pton(family, address.c_str(), cidr.bytes.data()) == 1) {
      cidr.family = family;
      return cidr.bits <= (family == AF_INET ? 32u : 128u);
    }
  }
  return false;
}

const unsigned char* address_bytes(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const unsigned char*>(
        &reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
  return reinterpret_cast<const unsigned char*>(
      &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool contains(const Cidr& cidr, const sockaddr* address) {
  if (address->sa_family != cidr.family) return false;
  const unsigned char* bytes = address_bytes(address);
  for (unsigned bit = 0; bit < cidr.bits; ++bit) {
    const unsigned mask = 0x80u >> (bit % 8);
    if ((bytes[bit / 8] & mask) != (cidr.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

}  // namespace

std::string host_key() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat status{};
  if (boot_id.empty() || ::stat("/proc/self/ns/net", &status) != 0) {
    // Not knowable: a key of our own, so that nobody tries to share memory with us.
    std::string unique = "unknown";
    for (const std::byte byte : random_session())
      unique += str(':', int{static_cast<std::uint8_t>(byte)});
    return unique;
  }
  return str(boot_id, '/', status.st_ino);
}

std::string interface_address(const std::string& interface) {
  Cidr cidr;
  const bool is_cidr = parse_cidr(interface, cidr);
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) throw InternalError(str("getifaddrs: ", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::string known;
  std::string v6;
  std::string link_local;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, INET6_ADDRSTRLEN> number{};
    ::inet_ntop(family, address_bytes(entry->ifa_addr), number.data(), number.size());
    const bool is_of_link = is_link_local(entry->ifa_addr);
    const std::string text = is_of_link ? str(number.data(), '%', entry->ifa_name) : number.data();
    known += str(known.empty() ? "" : ", ", entry->ifa_name, ' ', number.data());
    if (is_cidr ? !contains(cidr, entry->ifa_addr) : interface != entry->ifa_name) continue;
    if (family == AF_INET || is_cidr) return text;
    std::string& found = is_of_link ? link_local : v6;
    if (found.empty()) found = text;
  }
  if (!v6.empty()) return v6;
  if (!link_local.empty()) return link_local;
  throw InvalidArgument(
      str("interface '", interface, "' matches nothing here (NAME or CIDR); there is: ", known));
}

}  // namespace gradring::transport
