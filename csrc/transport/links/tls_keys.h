// What a job's secret gives to TLS: the pre-shared key, the name that both ends call it by, and
// OpenSSL's contexts with them, made once for a secret and an end.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>

namespace gradring::transport {

// Callable from any thread; what it returns is shared. Throws InternalError where OpenSSL lacks
// TLS 1.3.
std::shared_ptr<SSL_CTX> client_context(const std::string& secret);
std::shared_ptr<SSL_CTX> server_context(const std::string& secret);

}  // namespace gradring::transport
