// What a process brings to each of its connections: the job's secret, and which of them it wants
// encrypted.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "transport/links/connection.h"

namespace gradring::transport {

enum class Encryption : std::uint8_t {
  kBetweenHosts,  // What leaves this host, or comes from another.
  kAlways,        // All TCP; what stays in memory or goes through a Unix socket is not.
  kNever,         // What others insist on all the same.
};

// "auto", "on", "off". Throws InvalidArgument.
Encryption parse_encryption(const std::string& text);

struct Credentials {
  Credentials() = default;
  Credentials(std::string known, Encryption wanted = Encryption::kBetweenHosts)
      : secret(std::move(known)), encryption(wanted) {}

  std::string secret;
  Encryption encryption = Encryption::kBetweenHosts;

  bool want_encrypted(int fd) const;
  // For who has connected: before anything is said.
  void open(Connection& connection) const;
};

}  // namespace gradring::transport
