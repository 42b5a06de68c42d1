#include "transport/links/tls_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>
#include <map>
#include <string_view>

#include "base/config.h"
#include "base/error.h"
#include "base/guarded.h"

namespace gradring::transport {
namespace {

constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteNumber{0x13, 0x01};
// Of a process that joins job after job.
constexpr std::size_t kSecretsKept = 64;

using Digest = std::array<unsigned char, 32>;

struct Keys {
  Digest key;
  Digest name;  // Tells nothing of the key, and which secret it is only to who knows that.
};

Digest derive(const std::string& secret, std::string_view what) {
  Digest digest{};
  unsigned int length = 0;
  const auto* ok = ::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(what.data()), what.size(),
                          digest.data(), &length);
  GRADRING_ASSERT(ok != nullptr && length == digest.size());
  return digest;
}

// Where a context keeps its Keys, which die with it.
int keys_index() {
  static const int index =
      ::CRYPTO_get_ex_new_index(CRYPTO_EX_INDEX_SSL_CTX, 0, nullptr, nullptr, nullptr,
                                [](void*, void* keys, CRYPTO_EX_DATA*, int, long, void*) {
                                  delete static_cast<Keys*>(keys);
                                });
  return index;
}

const Keys& keys_of(SSL* ssl) {
  return *static_cast<const Keys*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(ssl), keys_index()));
}

// TLS 1.3 takes a pre-shared key as a session that was never held. Null: out of memory.
SSL_SESSION* make_session(SSL* ssl, const Keys& keys) {
  SSL_SESSION* session = ::SSL_SESSION_new();
  const SSL_CIPHER* suite = ::SSL_CIPHER_find(ssl, kSuiteNumber.data());
  if (session == nullptr || suite == nullptr ||
      ::SSL_SESSION_set1_master_key(session, keys.key.data(), keys.key.size()) != 1 ||
      ::SSL_SESSION_set_cipher(session, suite) != 1 ||
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    ::SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** name, std::size_t* name_bytes,
              SSL_SESSION** session) {
  *session = nullptr;
  if (digest != nullptr && !::EVP_MD_is_a(digest, "SHA256")) return 1;
  const Keys& keys = keys_of(ssl);
  *name = keys.name.data();
  *name_bytes = keys.name.size();
  *session = make_session(ssl, keys);
  return *session != nullptr ? 1 : 0;
}

// No session: another secret's key is offered. The handshake then fails for want of a certificate.
int find_key(SSL* ssl, const unsigned char* name, std::size_t name_bytes, SSL_SESSION** session) {
  *session = nullptr;
  const Keys& keys = keys_of(ssl);
  if (name_bytes != keys.name.size() || CRYPTO_memcmp(name, keys.name.data(), name_bytes) != 0)
    return 1;
  *session = make_session(ssl, keys);
  return *session != nullptr ? 1 : 0;
}

std::shared_ptr<SSL_CTX> make_context(const std::string& secret, const SSL_METHOD* method) {
  std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(method), ::SSL_CTX_free);
  if (!context || ::SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context.get(), kSuite) != 1 ||
      ::SSL_CTX_set1_groups_list(context.get(), "X25519") != 1)
    throw InternalError("OpenSSL on this machine has no TLS 1.3; GRADRING_TLS=off does without");
  auto* keys =
      new Keys{derive(secret, "gradring tls 1: key"), derive(secret, "gradring tls 1: name")};
  ::SSL_CTX_set_ex_data(context.get(), keys_index(), keys);
  ::SSL_CTX_set_psk_use_session_callback(context.get(), &offer_key);
  ::SSL_CTX_set_psk_find_session_callback(context.get(), &find_key);
  // Each connection is new: no tickets, no cache. Nor what is there to please old middle boxes.
  ::SSL_CTX_set_num_tickets(context.get(), 0);
  ::SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_clear_options(context.get(), SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  // A process that dies says no goodbye; the messages above know what is whole.
  ::SSL_CTX_set_options(context.get(), SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  // Several records from one system call.
  ::SSL_CTX_set_read_ahead(context.get(), 1);
  ::SSL_CTX_set_default_read_buffer_len(context.get(), limits::kTlsReadBytes);
  return context;
}

// A server that lacks the key may offer a certificate in its place, and a client takes any unless
// it is told to look at it.
std::shared_ptr<SSL_CTX> make_client_context(const std::string& secret) {
  auto context = make_context(secret, ::TLS_client_method());
  ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_cert_verify_callback(
      context.get(), [](X509_STORE_CTX*, void*) { return 0; }, nullptr);
  return context;
}

std::shared_ptr<SSL_CTX> make_server_context(const std::string& secret) {
  return make_context(secret, ::TLS_server_method());
}

// Never destroyed: OpenSSL cleans up at exit, and before statics that are older than its first use.
using Contexts = std::map<std::string, std::shared_ptr<SSL_CTX>>;

std::shared_ptr<SSL_CTX> context_in(Guarded<Contexts>& kept, const std::string& secret,
                                    std::shared_ptr<SSL_CTX> (*make)(const std::string&)) {
  return kept.with([&](Contexts& contexts) {
    if (const auto found = contexts.find(secret); found != contexts.end()) return found->second;
    if (contexts.size() >= kSecretsKept) contexts.clear();
    return contexts[secret] = make(secret);
  });
}

}  // namespace

std::shared_ptr<SSL_CTX> client_context(const std::string& secret) {
  static auto& contexts = *new Guarded<Contexts>;
  return context_in(contexts, secret, &make_client_context);
}

std::shared_ptr<SSL_CTX> server_context(const std::string& secret) {
  static auto& contexts = *new Guarded<Contexts>;
  return context_in(contexts, secret, &make_server_context);
}

}  // namespace gradring::transport
