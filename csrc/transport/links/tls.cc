#include "transport/links/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "base/error.h"
#include "transport/links/tls_keys.h"

namespace gradring::transport {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Encrypted before they are sent in one system call: they are still in the cache then.
constexpr std::size_t kTurnBytes = 4 * kRecordBytes;
constexpr auto kHandshakeRecord = std::byte{SSL3_RT_HANDSHAKE};

constexpr const char* kOtherSecret =
    "it does not know this job's secret: GRADRING_SECRET differs between the two processes, or "
    "what "
    "is there is another program";

SSL* make_ssl(const std::string& secret, Tls::End end) {
  const bool is_client = end == Tls::End::kClient;
  const auto context = is_client ? client_context(secret) : server_context(secret);
  SSL* ssl = ::SSL_new(context.get());
  if (ssl == nullptr) throw std::bad_alloc();
  is_client ? ::SSL_set_connect_state(ssl) : ::SSL_set_accept_state(ssl);
  return ssl;
}

}  // namespace

Tls::Tls(int fd, const std::string& secret, End end, std::uint64_t records_per_key)
    : wire_{fd, false, {}, 0},
      ssl_(make_ssl(secret, end), ::SSL_free),
      records_per_key_(records_per_key) {
  BIO* bio = ::BIO_new(method());
  if (bio == nullptr) throw std::bad_alloc();
  ::BIO_set_data(bio, &wire_);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl_.get(), bio, bio);  // Takes it.
}

Tls::~Tls() = default;

bool Tls::begins_with(std::byte first) {
  return first == kHandshakeRecord;
}

const bio_method_st* Tls::method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gradring");
    if (made == nullptr) throw std::bad_alloc();
    ::BIO_meth_set_write(made, &Tls::write);
    ::BIO_meth_set_read(made, &Tls::read);
    ::BIO_meth_set_ctrl(made, &Tls::control);
    return made;
  }();
  return method;
}

int Tls::write(BIO* bio, const char* data, int size) {
  auto& out = static_cast<Wire*>(::BIO_get_data(bio))->out;
  const auto bytes = std::as_bytes(std::span(data, static_cast<std::size_t>(size)));
  try {
    out.insert(out.end(), bytes.begin(), bytes.end());
  } catch (const std::bad_alloc&) {
    return -1;  // Nothing may be thrown through OpenSSL. The session is over.
  }
  return size;
}

int Tls::read(BIO* bio, char* data, int size) {
  auto& wire = *static_cast<Wire*>(::BIO_get_data(bio));
  ::BIO_clear_retry_flags(bio);
  const auto room = std::as_writable_bytes(std::span(data, static_cast<std::size_t>(size)));
  const Io io = transport::recv_some(wire.fd, room, {});
  if (io.bytes > 0) return static_cast<int>(io.bytes);
  wire.is_closed = io.closed;
  if (io.closed) return 0;
  ::BIO_set_retry_read(bio);
  return -1;
}

long Tls::control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return static_cast<Wire*>(::BIO_get_data(bio))->is_closed ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// True: nothing is left to be sent.
bool Tls::flush() {
  while (wire_.sent < wire_.out.size()) {
    const Io io = transport::send_some(wire_.fd, std::span(wire_.out).subspan(wire_.sent), {});
    is_broken_ |= io.closed;
    if (io.bytes == 0) return false;
    wire_.sent += io.bytes;
  }
  wire_.out.clear();
  wire_.sent = 0;
  return true;
}

bool Tls::shake() {
  if (is_ready_) [[likely]]
    return true;
  if (has_ended_) return false;
  ::ERR_clear_error();
  const int done = ::SSL_do_handshake(ssl_.get());
  // What went wrong is told to the other end, too.
  flush();
  if (done == 1) {
    GRADRING_ASSERT(::SSL_session_reused(ssl_.get()) == 1);  // By the key, and nothing else.
    return is_ready_ = may_hold_whole_ = true;
  }
  const int error = ::SSL_get_error(ssl_.get(), done);
  if (error == SSL_ERROR_WANT_READ && !wire_.is_closed) return false;
  has_ended_ = is_broken_ = true;
  if (!wire_.is_closed) fail_to_shake();
  return false;
}

void Tls::fail_to_shake() {
  const unsigned long error = ::ERR_peek_error();
  ::ERR_clear_error();
  // A server that finds no key looks for a certificate, and has none.
  const int reason = ERR_GET_REASON(error);
  constexpr std::array kKeyReasons{SSL_R_NO_SHARED_CIPHER,
                                   SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM,
                                   SSL_R_MISSING_PSK_KEX_MODES_EXTENSION,
                                   SSL_R_BINDER_DOES_NOT_VERIFY,
                                   SSL_R_NO_CERTIFICATE_SET,
                                   SSL_R_CERTIFICATE_VERIFY_FAILED,
                                   SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE,
                                   SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER,
                                   SSL_R_TLSV1_ALERT_DECRYPT_ERROR,
                                   SSL_R_TLSV1_ALERT_INTERNAL_ERROR};
  if (std::ranges::find(kKeyReasons, reason) != kKeyReasons.end()) throw AuthError(kOtherSecret);
  const char* text = ::ERR_reason_error_string(error);
  throw ProtocolError(str("the TLS handshake failed: ", text == nullptr ? "no reason" : text));
}

// False where the session is over, as after bytes that were changed on the way.
bool Tls::encrypt(std::span<const std::byte> bytes) {
  ::ERR_clear_error();
  if (++records_ > records_per_key_) {
    records_ = 1;
    ::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  std::size_t written = 0;
  if (::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) != 1) {
    ::ERR_clear_error();
    is_broken_ = true;
    return false;
  }
  GRADRING_ASSERT(written == bytes.size());
  return true;
}

// Takes up to kTurnBytes off both. A head shares its record with what follows it.
std::size_t Tls::encrypt_turn(std::span<const std::byte>& head, std::span<const std::byte>& body) {
  std::size_t taken = 0;
  if (!head.empty()) {
    std::array<std::byte, kRecordBytes> record;
    const std::size_t of_head = std::min(head.size(), record.size());
    const std::size_t of_body = std::min(body.size(), record.size() - of_head);
    std::memcpy(record.data(), head.data(), of_head);
    if (of_body > 0) std::memcpy(record.data() + of_head, body.data(), of_body);
    if (!encrypt(std::span(record).first(of_head + of_body))) return 0;
    head = head.subspan(of_head);
    body = body.subspan(of_body);
    taken = of_head + of_body;
  }
  while (head.empty() && !body.empty() && taken < kTurnBytes) {
    const auto record = body.first(std::min(body.size(), kRecordBytes));
    if (!encrypt(record)) return taken;
    body = body.subspan(record.size());
    taken += record.size();
  }
  return taken;
}

Io Tls::send_some(std::span<const std::byte> head, std::span<const std::byte> body) {
  if (!shake() || is_broken_ || !flush()) return {0, is_broken_};
  std::size_t bytes = std::min(held_, head.size() + body.size());
  held_ -= bytes;
  (head.empty() ? body : head) = (head.empty() ? body : head).subspan(bytes);
  while (!head.empty() || !body.empty()) {
    const std::size_t taken = encrypt_turn(head, body);
    if (is_broken_) return {bytes, true};
    if (!flush()) {
      held_ = 1;
      return {bytes + taken - held_, is_broken_};
    }
    bytes += taken;
  }
  return {bytes, false};
}

// False: nothing more comes for now.
bool Tls::read_into(std::span<std::byte>& part, std::size_t& bytes) {
  while (!part.empty()) {
    std::size_t got = 0;
    ::ERR_clear_error();
    if (::SSL_read_ex(ssl_.get(), part.data(), part.size(), &got) != 1) {
      may_hold_whole_ = false;
      has_ended_ |= ::SSL_get_error(ssl_.get(), 0) != SSL_ERROR_WANT_READ;
      // Others look at this thread's errors, too: Python's own ssl does.
      ::ERR_clear_error();
      return false;
    }
    may_hold_whole_ = true;
    part = part.subspan(got);
    bytes += got;
  }
  return true;
}

Io Tls::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  if (!shake()) return {0, has_ended_};
  std::size_t bytes = 0;
  if (read_into(head, bytes)) read_into(body, bytes);
  return {bytes, bytes == 0 && has_ended_};
}

bool Tls::may_hold_input() const {
  // An end that was found behind bytes which were asked for has still to be told.
  return has_ended_ || (may_hold_whole_ && ::SSL_has_pending(ssl_.get()) == 1);
}

short Tls::events(bool reads, bool writes) const {
  const bool has_output = wire_.sent < wire_.out.size();
  if (!is_ready_) return has_output ? POLLIN | POLLOUT : POLLIN;
  return static_cast<short>((reads ? POLLIN : 0) | (writes || has_output ? POLLOUT : 0));
}

}  // namespace gradring::transport
