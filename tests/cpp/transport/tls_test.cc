// TLS below a connection: what is sent arrives as it was, nobody on the way reads it or changes it,
// and who does not know the job's secret gets nowhere.
#include "transport/links/tls.h"

#include <doctest/doctest.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/no_memory.h"
#include "transport/links/connection.h"
#include "transport/links/tcp_link.h"

namespace gradring::transport::tls_test {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kSecret = "the secret";
constexpr Millis kPlenty{20'000};

std::pair<Fd, Fd> sockets() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Bytes random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

struct Pair {
  explicit Pair(std::uint64_t records_per_key = limits::kTlsRecordsPerKey,
                const std::string& theirs = kSecret)
      : fds(sockets()),
        client(fds.first.get(), kSecret, Tls::End::kClient, records_per_key),
        server(fds.second.get(), theirs, Tls::End::kServer, records_per_key) {}

  std::pair<Fd, Fd> fds;
  Tls client;
  Tls server;
};

// Both ends work until all of `bytes`, offered as a head and a body, has come from one to the
// other, some at a time. What came.
Bytes carried(Tls& from, Tls& to, std::span<const std::byte> head,
              std::span<const std::byte> body) {
  Bytes got(head.size() + body.size());
  std::size_t sent = 0;
  std::size_t received = 0;
  const Time deadline = Clock::now() + kPlenty;
  while (received < got.size() && Clock::now() < deadline) {
    const std::size_t of_head = std::min(sent, head.size());
    const Io out = from.send_some(head.subspan(of_head), body.subspan(sent - of_head));
    REQUIRE_FALSE(out.closed);
    sent += out.bytes;
    const std::size_t next = std::min<std::size_t>(got.size() - received, 30'001);
    const Io in = to.recv_some(std::span(got).subspan(received, next), {});
    REQUIRE_FALSE(in.closed);
    received += in.bytes;
  }
  CHECK(sent == got.size());
  return got;
}

void check_carried(Tls& from, Tls& to, std::size_t head_bytes, std::size_t body_bytes) {
  CAPTURE(head_bytes);
  CAPTURE(body_bytes);
  const Bytes all = random_bytes(head_bytes + body_bytes, head_bytes * 7 + body_bytes);
  const auto head = std::span(all).first(head_bytes);
  CHECK(carried(from, to, head, std::span(all).subspan(head_bytes)) == all);
}

TEST_CASE("what is sent arrives, of every length around a record's, both ways") {
  Pair pair;
  for (const std::size_t head : {0, 1, 64, 16383, 16384, 16385, 40'000})
    for (const std::size_t body : {0, 1, 16320, 16384, 65'536, 300'000}) {
      check_carried(pair.client, pair.server, head, body);
      check_carried(pair.server, pair.client, head, body);
    }
}

TEST_CASE(
    "what does not fit into the kernel is not counted but for what is begun, and comes later") {
  Pair pair;
  check_carried(pair.client, pair.server, 1, 0);
  const Bytes all = random_bytes(8'000'000, 1);
  std::size_t sent = 0;
  while (true) {
    const Io io = pair.client.send_some({}, std::span(all).subspan(sent));
    sent += io.bytes;
    if (io.bytes == 0) break;
  }
  REQUIRE(sent < all.size());
  CHECK((pair.client.events(false, true) & POLLOUT) != 0);
  Bytes got(all.size());
  std::size_t received = 0;
  const Time deadline = Clock::now() + kPlenty;
  while (received < got.size() && Clock::now() < deadline) {
    received += pair.server.recv_some(std::span(got).subspan(received), {}).bytes;
    // Never more than is counted, except for the byte that makes the sender come again.
    CHECK(received <= sent + 1);
    sent += pair.client.send_some({}, std::span(all).subspan(sent)).bytes;
  }
  CHECK(got == all);
  CHECK(sent == all.size());
}

TEST_CASE("what has been read whole holds nobody off from sleeping") {
  Pair pair;
  for (const std::size_t bytes : {1, 100, 40'000}) {
    check_carried(pair.client, pair.server, bytes, 0);
    CHECK_FALSE(pair.server.may_hold_input());
    CHECK_FALSE(pair.client.may_hold_input());
  }
}

TEST_CASE("keys are changed on the way, again and again") {
  Pair pair(3);
  for (int round = 0; round < 20; ++round) {
    check_carried(pair.client, pair.server, 64, 200'000);
    check_carried(pair.server, pair.client, 10, 0);
  }
}

TEST_CASE("nobody on the way reads what is said, also twice the same") {
  Pair pair;
  check_carried(pair.client, pair.server, 1, 0);
  const std::string text = "a gradient that is nobody's business";
  const auto said = std::as_bytes(std::span(text));
  Bytes seen[2];
  for (Bytes& bytes : seen) {
    REQUIRE(pair.client.send_some(said, {}).bytes == said.size());
    bytes.resize(4096);
    const Io raw = recv_some(pair.fds.second.get(), bytes, {});
    bytes.resize(raw.bytes);
    REQUIRE(raw.bytes > said.size());
    CHECK(std::ranges::search(bytes, said).empty());
  }
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("a byte that is changed on the way ends the connection, and is never delivered") {
  Pair pair;
  check_carried(pair.client, pair.server, 1, 0);
  const Bytes all = random_bytes(1000, 3);
  REQUIRE(pair.client.send_some(all, {}).bytes == all.size());
  Bytes raw(4096);
  const Io taken = recv_some(pair.fds.second.get(), raw, {});
  raw.resize(taken.bytes);
  raw[500] ^= std::byte{1};
  REQUIRE(send_some(pair.fds.first.get(), raw, {}).bytes == raw.size());
  Bytes got(1000);
  const Io io = pair.server.recv_some(got, {});
  CHECK(io.bytes == 0);
  CHECK(io.closed);
  CHECK(pair.server.send_some(all, {}).closed);
}

TEST_CASE("an end that is found behind good bytes is told without a poll") {
  Pair pair;
  check_carried(pair.client, pair.server, 1, 0);
  const Bytes all = random_bytes(1000, 3);
  REQUIRE(pair.client.send_some(all, {}).bytes == all.size());
  Bytes raw(4096);
  raw.resize(recv_some(pair.fds.second.get(), raw, {}).bytes);
  REQUIRE(pair.client.send_some(all, {}).bytes == all.size());
  Bytes changed(4096);
  changed.resize(recv_some(pair.fds.second.get(), changed, {}).bytes);
  changed[500] ^= std::byte{1};
  REQUIRE(send_some(pair.fds.first.get(), raw, changed).bytes == raw.size() + changed.size());
  Bytes got(2000);
  CHECK(pair.server.recv_some(got, {}).bytes == all.size());
  CHECK(pair.server.may_hold_input());
  CHECK(pair.server.recv_some(got, {}).closed);
}

TEST_CASE("who knows another secret gets nowhere, and both ends say why") {
  Pair pair(limits::kTlsRecordsPerKey, "another secret");
  std::byte byte{};
  const auto shake = [&](Tls& end) {
    for (int round = 0; round < 10; ++round) end.recv_some(std::span(&byte, 1), {});
  };
  CHECK(pair.client.send_some(std::span(&byte, 1), {}).bytes == 0);
  CHECK_THROWS_WITH_AS(shake(pair.server), doctest::Contains("GRADRING_SECRET"), AuthError);
  CHECK_THROWS_WITH_AS(shake(pair.client), doctest::Contains("GRADRING_SECRET"), AuthError);
  CHECK(pair.client.send_some(std::span(&byte, 1), {}).closed);
}

// A server as there are many: with a certificate, which it has signed itself, and no key of ours.
std::unique_ptr<SSL, void (*)(SSL*)> certified_server(int fd) {
  EVP_PKEY* key = ::EVP_EC_gen("P-256");
  X509* certificate = ::X509_new();
  ::X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  ::X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  ::X509_set_pubkey(certificate, key);
  REQUIRE(::X509_sign(certificate, key, ::EVP_sha256()) > 0);
  SSL_CTX* context = ::SSL_CTX_new(::TLS_server_method());
  REQUIRE(::SSL_CTX_use_certificate(context, certificate) == 1);
  REQUIRE(::SSL_CTX_use_PrivateKey(context, key) == 1);
  std::unique_ptr<SSL, void (*)(SSL*)> server(::SSL_new(context), ::SSL_free);
  ::SSL_set_fd(server.get(), fd);
  ::SSL_CTX_free(context);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return server;
}

TEST_CASE("a server with a certificate in place of the secret is told nothing") {
  auto [near, far] = sockets();
  Tls client(near.get(), kSecret, Tls::End::kClient);
  const auto server = certified_server(far.get());
  const auto said = std::as_bytes(std::span(kSecret));
  char heard[100];
  const auto talk = [&] {
    for (int round = 0; round < 10; ++round) {
      client.send_some(said, {});
      ::SSL_accept(server.get());
    }
  };
  CHECK_THROWS_WITH_AS(talk(), doctest::Contains("GRADRING_SECRET"), AuthError);
  CHECK(client.send_some(said, {}).closed);
  CHECK(::SSL_accept(server.get()) != 1);
  CHECK(::SSL_read(server.get(), heard, sizeof heard) <= 0);
}

TEST_CASE("a session that finds no memory is over") {
  Pair pair;
  check_carried(pair.client, pair.server, 1, 0);
  const Bytes all = random_bytes(60'000, 1);
  const testing::NoHeap shortage(30'000);
  CHECK(pair.client.send_some({}, all).closed);
  CHECK(shortage.was_felt());
  CHECK(pair.client.send_some({}, all).closed);
}

TEST_CASE("what is no TLS is refused, and an end that goes in the middle is an end") {
  for (const std::size_t bytes : {1, 5, 100, 70'000}) {
    auto [near, far] = sockets();
    Tls server(far.get(), kSecret, Tls::End::kServer);
    Bytes garbage = random_bytes(bytes, bytes);
    garbage[0] = std::byte{0x16};
    send_some(near.get(), garbage, {});
    near.reset();
    std::byte byte{};
    bool is_over = false;
    try {
      while (!is_over) is_over = server.recv_some(std::span(&byte, 1), {}).closed;
    } catch (const Error&) {
      is_over = true;
    }
    CHECK(is_over);
  }
  Pair pair;
  check_carried(pair.client, pair.server, 10, 10);
  const std::byte last{42};
  REQUIRE(pair.client.send_some(std::span(&last, 1), {}).bytes == 1);
  ::shutdown(pair.fds.first.get(), SHUT_WR);
  std::byte got{};
  CHECK(pair.server.recv_some(std::span(&got, 1), {}).bytes == 1);
  CHECK(got == last);
  CHECK(pair.server.recv_some(std::span(&got, 1), {}).closed);
  // The other way is open still, also where not all of it fits at once.
  const Bytes all = random_bytes(8'000'000, 1);
  CHECK_FALSE(pair.server.send_some({}, all).closed);
  CHECK(pair.client.recv_some(std::span(&got, 1), {}).bytes == 1);
  pair.fds.first.reset();
  while (!pair.server.send_some({}, all).closed) continue;
}

TEST_CASE("a link that holds what came does not let its owner sleep") {
  auto [near, far] = sockets();
  Connection ours(std::move(near));
  Connection theirs(std::move(far));
  ours.encrypt(kSecret, Tls::End::kClient);
  theirs.encrypt(kSecret, Tls::End::kServer);
  const Bytes all = random_bytes(1000, 1);
  std::thread sender([&] { ours.send_all(all, Clock::now() + kPlenty); });
  Bytes got(1000);
  theirs.recv_all(std::span(got).first(1), Clock::now() + kPlenty);
  sender.join();
  TcpLink link(std::move(theirs));
  CHECK_FALSE(link.prepare_sleep(true, false));  // A poll would say nothing.
  CHECK(link.prepare_sleep(false, true));
  CHECK(link.recv_some(std::span(got).subspan(1, 10), std::span(got).subspan(11)).bytes == 999);
  CHECK(got == all);
  CHECK(link.recv_some(std::span(got).first(1), {}).bytes == 0);
  CHECK(link.prepare_sleep(true, false));
}

}  // namespace
}  // namespace gradring::transport::tls_test
