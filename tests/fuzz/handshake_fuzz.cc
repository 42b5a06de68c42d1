// The first bytes of a connection, from strangers at either end. The input is what one half gets to
// read: no bytes but those that the secret makes bring it to its end, whatever they are it asks for
// no more than a handshake's fixed sizes, and it refuses with AuthError or ProtocolError only.
#include "transport/joining/handshake.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "fuzz/target.h"

using namespace gradring;
using namespace gradring::transport;

namespace {

using Bytes = std::vector<std::byte>;

const std::string kSecret = "a secret that the stranger does not know";
const Intro kIntro{
    .purpose = Purpose::kLink, .lane = 1, .from = 3, .to = 5, .communicator = 7, .session = {}};

Nonce nonce_of(std::byte fill) {
  Nonce nonce;
  nonce.fill(fill);
  return nonce;
}

const Nonce kClientNonce = nonce_of(std::byte{1});
const Nonce kServerNonce = nonce_of(std::byte{2});

// What each half reads in a handshake that goes well: after a leading byte that says which half.
struct Reading {
  Bytes server{std::byte{0}};
  Bytes client{std::byte{1}};
};

Reading good_handshake() {
  Reading reading;
  ServerHandshake server(kSecret, kServerNonce);
  ClientHandshake client(kSecret, kClientNonce, kIntro);
  const auto read = [](Bytes& all, const Bytes& bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
    return bytes;
  };
  Bytes said = client.hello();
  while (!client.is_done()) {
    said = server.receive(read(reading.server, said));
    said = client.receive(read(reading.client, said));
  }
  fuzz::require(server.is_done(), "both halves come to the end together");
  return reading;
}

// How many bytes brought this half to its end; 0 if they did not.
template <typename Half>
std::size_t feed(Half& half, std::span<const std::byte> bytes) {
  std::size_t used = 0;
  try {
    while (!half.is_done()) {
      const std::size_t wanted = half.wants();
      if (used > 0 && wanted == 0) return 0;  // Of another version.
      fuzz::require(wanted > 0 && wanted <= kProofBytes, "a half wants a message of a fixed size");
      if (bytes.size() - used < wanted) return 0;
      const Bytes answer = half.receive(bytes.subspan(used, wanted));
      fuzz::require(answer.size() <= kProofBytes, "an answer has a fixed size");
      used += wanted;
    }
    return used;
  } catch (const AuthError&) {
  } catch (const ProtocolError&) {
  }
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  static const Reading good = good_handshake();
  if (byte_count == 0) return 0;
  const std::span bytes(reinterpret_cast<const std::byte*>(data) + 1, byte_count - 1);
  const bool is_server = data[0] % 2 == 0;
  ServerHandshake server(kSecret, kServerNonce);
  ClientHandshake client(kSecret, kClientNonce, kIntro);
  const std::size_t used = is_server ? feed(server, bytes) : feed(client, bytes);
  if (used == 0) return 0;
  const Bytes& right = is_server ? good.server : good.client;
  Bytes said(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(used));
  // The release, behind "GRAD" and the version, may be another.
  if (is_server) std::copy_n(right.begin() + 1 + 5, 3, said.begin() + 5);
  fuzz::require(
      used + 1 == right.size() && std::equal(right.begin() + 1, right.end(), said.begin()),
      "only who knows the secret gets through");
  return 0;
}

std::vector<std::vector<std::byte>> fuzz::examples() {
  const Reading good = good_handshake();
  return {good.server, good.client};
}
