// The first bytes of every connection, control and data: both ends prove that they know the job's
// secret before anything else is read (promise P14). HMAC-SHA256 challenge and response in both
// directions; fresh nonces make a recording useless; the messages have fixed sizes, so a stranger
// cannot make us allocate.
//   client: hello  = its build (wire/version.h), client nonce                         40 bytes
//   server: answer = server nonce, HMAC("server", client nonce, server nonce)         64 bytes
//   client: proof  = intro, HMAC("client", client nonce, server nonce, intro)         96 bytes
//   server: accept = HMAC("accept", client nonce, server nonce, intro)                32 bytes
// A hello of another version of the wire is answered with the server's own build and zeros, as long
// as the answer, and that is the end. Hello and answer are so long in all versions. A client that
// finds that the secrets differ sends zeros for its proof, so that the server can say so too.
// A hello from another host that is not encrypted, though it should be, is answered with the
// server's build and a one before zeros. TLS (links/tls.h) is below all this, and begins before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "transport/joining/credentials.h"
#include "wire/messages.h"
#include "wire/version.h"

namespace gradring::transport {

enum class Purpose : std::uint8_t {
  kControl = 0,
  kLink = 1,
  kSharedLink = 2,
  kSegment = 3,
  kInspect = 4,           // Not from a rank: somebody who asks for the record (inspection.h).
  kParameters = 5,        // A client of the parameter server: to a shard, or (to -1) with the
  kSharedParameters = 6,  // question who the server is. Shared memory only to a shard.
  kNewcomer = 7,          // Not a rank yet: waits until those of the job take it in (lobby.h).
};

// For those who do not see the wire itself: builds of one version understand each other.
inline constexpr std::uint8_t kSpokenVersion = wire::kWireVersion;

// What a connection is for. Covered by the client's proof.
struct Intro {
  Purpose purpose = Purpose::kControl;
  std::uint8_t lane = 0;  // kLink, kSharedLink: 0 collectives, 1 send and recv.
  Rank from = -1;         // World ranks.
  Rank to = -1;           // kParameters, kSharedParameters: the shard.
  std::uint64_t communicator = 0;
  wire::SessionId session{};       // Zero while joining.
  std::uint64_t members_hash = 0;  // kLink, kSharedLink, kSegment: whom it counts as members.
};

inline constexpr std::size_t kIntroBytes = 64;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::size_t kHelloBytes = sizeof(wire::BuildBytes) + kNonceBytes;
inline constexpr std::size_t kAnswerBytes = kNonceBytes + kMacBytes;
inline constexpr std::size_t kProofBytes = kIntroBytes + kMacBytes;

inline constexpr std::array<std::byte, kProofBytes> kNoProof{};
void say_no_proof(Connection& connection);  // By a client that has found out that secrets differ.

using Nonce = std::array<std::byte, kNonceBytes>;
using Mac = std::array<std::byte, kMacBytes>;

Nonce random_nonce();  // From the system's generator.
wire::SessionId random_session();

// The server's half: is told bytes, says bytes. No I/O, no clock.
class ServerHandshake {
 public:
  ServerHandshake(const std::string& secret, const Nonce& nonce)
      : secret_(&secret), nonce_(nonce) {}
  ServerHandshake(std::string&& secret, const Nonce& nonce) = delete;  // It would not outlive this.

  // How many bytes it wants next; 0 when finished, or refused.
  std::size_t wants() const;
  // Takes exactly wants() bytes and returns the answer to send. Throws AuthError or ProtocolError:
  // drop the connection.
  std::vector<std::byte> receive(std::span<const std::byte> bytes);
  // From now on a client of the right version is refused all the same: it is not encrypted.
  void want_encryption() { wants_encryption_ = true; }
  // The client's, if it is of another version: once the answer is sent, drop the connection.
  const std::optional<wire::Build>& other_build() const { return other_build_; }
  // The same, of one that should have been encrypted.
  bool lacks_encryption() const { return step_ == Step::kRefused && !other_build_; }
  const Intro& intro() const { return intro_; }
  bool is_done() const { return step_ == Step::kDone; }

 private:
  enum class Step : std::uint8_t { kHello, kProof, kDone, kRefused };
  const std::string* secret_;  // Outlives this: the door owns it.
  Nonce nonce_;
  Nonce client_nonce_{};
  std::optional<wire::Build> other_build_;
  Intro intro_;
  bool wants_encryption_ = false;
  Step step_ = Step::kHello;
};

// The client's half, of the same kind.
class ClientHandshake {
 public:
  ClientHandshake(const std::string& secret, const Nonce& nonce, const Intro& intro);
  ClientHandshake(std::string&& secret, const Nonce& nonce, const Intro& intro) = delete;

  std::vector<std::byte> hello() const;  // What to send first.
  std::size_t wants() const;             // 0 when finished.
  // Takes exactly wants() bytes and returns what to send. Throws AuthError: the secrets differ; or
  // wire::OtherBuild.
  std::vector<std::byte> receive(std::span<const std::byte> bytes);
  bool is_done() const { return step_ == Step::kDone; }

 private:
  enum class Step : std::uint8_t { kAnswer, kAccept, kDone };
  const std::string* secret_;  // Outlives this.
  Nonce nonce_;
  Nonce server_nonce_{};
  std::array<std::byte, kIntroBytes> intro_;
  Step step_ = Step::kAnswer;
};

// The client's half, encrypted where that is wanted, blocking until `deadline`. Throws AuthError
// (the secrets differ, or what is encrypted), wire::OtherBuild, TimedOut, ProtocolError.
void shake_hands(Connection& connection, const Credentials& credentials, const Intro& intro,
                 Time deadline);

}  // namespace gradring::transport
