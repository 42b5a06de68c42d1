// TLS 1.3 over one socket, below everything that is said on it. Both ends know the job's secret, so
// there are no certificates: an external pre-shared key made from it, with an ephemeral X25519
// exchange (RFC 8446, 4.2.9, psk_dhe_ke), so that who learns the secret later reads nothing of what
// was recorded before. One cipher suite, TLS_AES_128_GCM_SHA256. The cryptography is OpenSSL's.
// Owned by whoever owns the socket; it never blocks.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "transport/links/socket.h"

struct bio_method_st;  // OpenSSL's BIO_METHOD.

namespace gradring::transport {

class Tls {
 public:
  enum class End : std::uint8_t { kClient, kServer };

  // `records_per_key`: after so many the sender takes its next key (RFC 8446, 5.5).
  Tls(int fd, const std::string& secret, End end,
      std::uint64_t records_per_key = limits::kTlsRecordsPerKey);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As those of sockets, once the ends have shaken hands, which both do on the way. What is counted
  // as sent is in the kernel, except that of bytes which are encrypted and do not fit there yet all
  // but the last count: so the sender has begun what it sends, comes back for the rest, and offers
  // the same bytes then. Throw AuthError while hands are shaken: the other end knows another
  // secret.
  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body);
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body);

  // What to poll the socket for: hands may have to be shaken first.
  short events(bool reads, bool writes) const;
  // Whether a recv_some may bring something that a poll of the socket knows nothing of.
  bool may_hold_input() const;

  static bool begins_with(std::byte first);  // What a client says first.

 private:
  // Behind OpenSSL's BIO: reads come from the socket, and what is written is kept until flush().
  struct Wire {
    int fd;
    bool is_closed = false;
    std::vector<std::byte> out;
    std::size_t sent = 0;  // Of `out`.
  };
  static const bio_method_st* method();
  static int write(BIO* bio, const char* data, int size);
  static int read(BIO* bio, char* data, int size);
  static long control(BIO* bio, int command, long number, void* pointer);

  bool shake();
  bool flush();
  bool encrypt(std::span<const std::byte> bytes);
  std::size_t encrypt_turn(std::span<const std::byte>& head, std::span<const std::byte>& body);
  bool read_into(std::span<std::byte>& part, std::size_t& bytes);
  [[noreturn]] void fail_to_shake();

  Wire wire_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;  // With the sender's key of now.
  std::size_t held_ = 0;       // Encrypted, and to be offered again.
  bool is_ready_ = false;
  bool has_ended_ = false;       // Nothing more comes.
  bool is_broken_ = false;       // Nothing more goes.
  bool may_hold_whole_ = false;  // What is held may be more than the beginning of a record.
};

}  // namespace gradring::transport
