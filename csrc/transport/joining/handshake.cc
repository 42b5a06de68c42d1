#include "transport/joining/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace gradring::transport {
namespace {

struct RawIntro {
  std::uint8_t purpose;
  std::uint8_t lane;
  std::uint8_t reserved[2];
  std::int32_t from;
  std::int32_t to;
  std::uint32_t reserved2;
  std::uint64_t communicator;
  std::array<std::byte, 16> session;
  std::uint64_t members_hash;
  std::uint8_t reserved3[16];
};
static_assert(sizeof(RawIntro) == kIntroBytes);
using IntroBytes = std::array<std::byte, kIntroBytes>;

IntroBytes encode(const Intro& intro) {
  RawIntro raw{};
  raw.purpose = static_cast<std::uint8_t>(intro.purpose);
  raw.lane = intro.lane;
  raw.from = intro.from;
  raw.to = intro.to;
  raw.communicator = intro.communicator;
  raw.session = intro.session;
  raw.members_hash = intro.members_hash;
  IntroBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

Intro decode_intro(std::span<const std::byte> bytes) {
  RawIntro raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.purpose > static_cast<std::uint8_t>(Purpose::kNewcomer) || raw.lane > 1)
    throw ProtocolError("handshake: unknown purpose");
  return {static_cast<Purpose>(raw.purpose),
          raw.lane,
          raw.from,
          raw.to,
          raw.communicator,
          raw.session,
          raw.members_hash};
}

// Labels have one length, so no two inputs of different kinds can be the same bytes.
Mac mac_of(const std::string& secret, const char (&label)[7], const Nonce& client,
           const Nonce& server, std::span<const std::byte> intro) {
  std::array<std::byte, 6 + 2 * kNonceBytes + kIntroBytes> input{};
  std::memcpy(input.data(), label, 6);
  std::memcpy(input.data() + 6, client.data(), kNonceBytes);
  std::memcpy(input.data() + 6 + kNonceBytes, server.data(), kNonceBytes);
  if (!intro.empty()) std::memcpy(input.data() + 6 + 2 * kNonceBytes, intro.data(), kIntroBytes);
  Mac mac;
  unsigned int length = 0;
  const auto* ok = ::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(input.data()), input.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &length);
  GRADRING_ASSERT(ok != nullptr && length == kMacBytes);
  return mac;
}

bool is_equal(const Mac& mine, std::span<const std::byte> theirs) {
  return theirs.size() == kMacBytes && CRYPTO_memcmp(mine.data(), theirs.data(), kMacBytes) == 0;
}

template <std::size_t N>
void fill_random(std::array<std::byte, N>& bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(N)) != 1)
    throw InternalError("the system's random generator failed");
}

// What is behind the build of a server that refuses.
using RefusalRest = std::array<std::byte, kAnswerBytes - sizeof(wire::BuildBytes)>;
constexpr RefusalRest kRefusalRest{};
constexpr RefusalRest kPlainRefusalRest{std::byte{1}};

// Throws what a server said in place of an answer, if it did.
void look_for_refusal(std::span<const std::byte> answer) {
  const auto build = wire::decode_build(answer);
  const auto rest = answer.subspan(sizeof(wire::BuildBytes));
  if (build && build->wire != wire::kWireVersion && std::ranges::equal(rest, kRefusalRest))
    throw wire::OtherBuild(*build);
  if (build && std::ranges::equal(rest, kPlainRefusalRest))
    throw AuthError(
        "it takes only encrypted connections, and this one is not: GRADRING_TLS is off here, or "
        "auto where it is on there or where a tunnel or a published port leads there; set it to "
        "the same on all hosts, and before a tunnel to on");
}

std::vector<std::byte> joined(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::vector<std::byte> bytes(first.begin(), first.end());
  bytes.insert(bytes.end(), second.begin(), second.end());
  return bytes;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

wire::SessionId random_session() {
  wire::SessionId session;
  fill_random(session);
  return session;
}

std::size_t ServerHandshake::wants() const {
  switch (step_) {
    case Step::kHello: return kHelloBytes;
    case Step::kProof: return kProofBytes;
    case Step::kDone:
    case Step::kRefused: return 0;
  }
  return 0;
}

std::vector<std::byte> ServerHandshake::receive(std::span<const std::byte> bytes) {
  GRADRING_ASSERT(bytes.size() == wants() && wants() != 0);
  if (step_ == Step::kHello) {
    const auto build = wire::decode_build(bytes);
    if (!build) throw ProtocolError("what it sent is not Gradring's handshake");
    // Version 1 would take an answer for one of another secret.
    if (build->wire == 1) throw wire::OtherBuild(*build);
    if (build->wire != wire::kWireVersion) {
      other_build_ = build;
      step_ = Step::kRefused;
      return joined(wire::encode(wire::this_build()), kRefusalRest);
    }
    if (wants_encryption_) {
      step_ = Step::kRefused;
      return joined(wire::encode(wire::this_build()), kPlainRefusalRest);
    }
    std::memcpy(client_nonce_.data(), bytes.data() + sizeof(wire::BuildBytes), kNonceBytes);
    step_ = Step::kProof;
    return joined(nonce_, mac_of(*secret_, "server", client_nonce_, nonce_, {}));
  }
  const auto intro = bytes.first(kIntroBytes);
  if (!is_equal(mac_of(*secret_, "client", client_nonce_, nonce_, intro),
                bytes.subspan(kIntroBytes)))
    throw AuthError("it does not know this job's secret");
  intro_ = decode_intro(intro);
  step_ = Step::kDone;
  return joined(mac_of(*secret_, "accept", client_nonce_, nonce_, intro), {});
}

ClientHandshake::ClientHandshake(const std::string& secret, const Nonce& nonce, const Intro& intro)
    : secret_(&secret), nonce_(nonce), intro_(encode(intro)) {}

std::vector<std::byte> ClientHandshake::hello() const {
  return joined(wire::encode(wire::this_build()), nonce_);
}

std::size_t ClientHandshake::wants() const {
  switch (step_) {
    case Step::kAnswer: return kAnswerBytes;
    case Step::kAccept: return kMacBytes;
    case Step::kDone: return 0;
  }
  return 0;
}

std::vector<std::byte> ClientHandshake::receive(std::span<const std::byte> bytes) {
  GRADRING_ASSERT(bytes.size() == wants() && step_ != Step::kDone);
  if (step_ == Step::kAnswer) {
    std::memcpy(server_nonce_.data(), bytes.data(), kNonceBytes);
    if (!is_equal(mac_of(*secret_, "server", nonce_, server_nonce_, {}),
                  bytes.subspan(kNonceBytes))) {
      look_for_refusal(bytes);
      throw AuthError(
          "it does not know this job's secret: GRADRING_SECRET differs between the two processes");
    }
    step_ = Step::kAccept;
    return joined(intro_, mac_of(*secret_, "client", nonce_, server_nonce_, intro_));
  }
  if (!is_equal(mac_of(*secret_, "accept", nonce_, server_nonce_, intro_), bytes))
    throw AuthError("it did not accept this connection properly");
  step_ = Step::kDone;
  return {};
}

void shake_hands(Connection& connection, const Credentials& credentials, const Intro& intro,
                 Time deadline) {
  const std::string peer = peer_text(connection.get());
  ClientHandshake client(credentials.secret, random_nonce(), intro);
  try {
    credentials.open(connection);
    connection.send_all(client.hello(), deadline);
    while (!client.is_done()) {
      std::vector<std::byte> bytes(client.wants());
      connection.recv_all(bytes, deadline);
      connection.send_all(client.receive(bytes), deadline);
    }
  } catch (const AuthError& error) {
    say_no_proof(connection);
    throw AuthError(str(peer, ": ", error.what()));
  } catch (const wire::OtherBuild& error) {
    throw wire::OtherBuild(str(peer, ": ", error.what()));
  }
}

void say_no_proof(Connection& connection) {
  // Not where TLS has found out: both ends know then.
  if (!connection.is_encrypted()) connection.send_some(kNoProof);
}

}  // namespace gradring::transport
