#include "transport/joining/credentials.h"

#include "base/error.h"
#include "transport/links/pacing.h"

namespace gradring::transport {

Encryption parse_encryption(const std::string& text) {
  if (text == "auto") return Encryption::kBetweenHosts;
  if (text == "on") return Encryption::kAlways;
  if (text == "off") return Encryption::kNever;
  throw InvalidArgument(str("tls '", text, "' is not auto, on or off"));
}

bool Credentials::want_encrypted(int fd) const {
  switch (encryption) {
    case Encryption::kBetweenHosts: return !is_within_host(fd);
    case Encryption::kAlways: return !is_unix(fd);
    case Encryption::kNever: return false;
  }
  return true;
}

void Credentials::open(Connection& connection) const {
  if (want_encrypted(connection.get())) connection.encrypt(secret, Tls::End::kClient);
}

}  // namespace gradring::transport
