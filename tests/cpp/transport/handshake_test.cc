// The first bytes of a connection: only who knows the job's secret gets through, in both
// directions, and a recording of one handshake is worth nothing in another.
#include "transport/joining/handshake.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <random>
#include <thread>

#include "base/error.h"
#include "transport/links/fd.h"
#include "transport/links/socket.h"

namespace gradring::transport::handshake_test {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kSecret = "correct horse battery staple";
const std::string kWrongSecret = "another secret";
constexpr Millis kPlenty{20'000};

struct Pair {
  Connection client;
  Connection server;
};

Pair socket_pair() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {Connection(Fd(ends[0])), Connection(Fd(ends[1]))};
}

Intro some_intro() {
  Intro intro{Purpose::kLink, 1, 3, 5, 0xabcdef0123456789u, {}};
  intro.session.fill(std::byte{7});
  return intro;
}

// The client's half on its own thread; what it threw.
class Client {
 public:
  Client(Connection& to, const std::string& secret, Time deadline = Clock::now() + kPlenty)
      : thread_([this, &to, secret, deadline] {
          try {
            shake_hands(to, secret, some_intro(), deadline);
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  ~Client() {
    if (thread_.joinable()) thread_.join();
  }
  void join() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  std::thread thread_;
};

Bytes recv_exactly(Connection& to, std::size_t bytes) {
  Bytes got(bytes);
  to.recv_all(got, Clock::now() + kPlenty);
  return got;
}

// Serves one handshake and keeps what the client sent.
struct Recording {
  Bytes hello;
  Bytes proof;
};
Recording serve(Connection& to, ServerHandshake& server) {
  Recording recording;
  recording.hello = recv_exactly(to, server.wants());
  to.send_all(server.receive(recording.hello), Clock::now() + kPlenty);
  recording.proof = recv_exactly(to, server.wants());
  to.send_all(server.receive(recording.proof), Clock::now() + kPlenty);
  return recording;
}

TEST_CASE("both ends with the secret get through, and the server learns what the client wants") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret);
  ServerHandshake server(kSecret, random_nonce());
  serve(pair.server, server);
  CHECK_NOTHROW(client.join());
  REQUIRE(server.is_done());
  CHECK(server.wants() == 0);
  CHECK(server.intro().purpose == Purpose::kLink);
  CHECK(server.intro().lane == 1);
  CHECK(server.intro().from == 3);
  CHECK(server.intro().to == 5);
  CHECK(server.intro().communicator == some_intro().communicator);
  CHECK(server.intro().session == some_intro().session);
}

TEST_CASE("a client notices a server that does not know the secret, and tells it only that") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret);
  ServerHandshake server(kWrongSecret, random_nonce());
  pair.server.send_all(server.receive(recv_exactly(pair.server, server.wants())),
                       Clock::now() + kPlenty);
  CHECK_THROWS_AS(client.join(), AuthError);
  CHECK(recv_exactly(pair.server, kProofBytes) == Bytes(kProofBytes));  // No proof.
}

TEST_CASE("a server refuses a client that does not know the secret") {
  // The client answers properly but for the secret: it talks to a server that shares its wrong one
  // until the proof, which the right server then gets to see.
  Pair pair = socket_pair();
  Client client(pair.client, kWrongSecret);
  const Nonce nonce = random_nonce();
  ServerHandshake wrong(kWrongSecret, nonce);
  ServerHandshake right(kSecret, nonce);
  const Bytes hello = recv_exactly(pair.server, wrong.wants());
  right.receive(hello);
  pair.server.send_all(wrong.receive(hello), Clock::now() + kPlenty);
  const Bytes proof = recv_exactly(pair.server, wrong.wants());
  CHECK_THROWS_AS(right.receive(proof), AuthError);
  CHECK_FALSE(right.is_done());
  ::shutdown(pair.server.get(), SHUT_RDWR);
  CHECK_THROWS_AS(client.join(), ProtocolError);
}

TEST_CASE("a recording of a good handshake opens nothing") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret);
  ServerHandshake server(kSecret, random_nonce());
  const Recording recording = serve(pair.server, server);
  client.join();

  ServerHandshake next(kSecret, random_nonce());
  next.receive(recording.hello);
  CHECK_THROWS_AS(next.receive(recording.proof), AuthError);
}

TEST_CASE("a server's answer is never the same twice, and neither is a client's hello") {
  const Bytes hello(kHelloBytes);
  CHECK(random_nonce() != random_nonce());
  Pair pair = socket_pair();
  Bytes hellos[2];
  for (Bytes& seen : hellos) {
    Client client(pair.client, kSecret, Clock::now() + Millis{1});
    seen = recv_exactly(pair.server, kHelloBytes);
    CHECK_THROWS_AS(client.join(), TimedOut);
  }
  CHECK(hellos[0] != hellos[1]);
}

TEST_CASE("no bit of the proof can be changed, the intro's included") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret);
  const Nonce nonce = random_nonce();
  ServerHandshake server(kSecret, nonce);
  const Recording recording = serve(pair.server, server);
  client.join();
  for (std::size_t bit = 0; bit < 8 * kProofBytes; ++bit) {
    Bytes proof = recording.proof;
    proof[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ServerHandshake again(kSecret, nonce);
    again.receive(recording.hello);
    CAPTURE(bit);
    CHECK_THROWS_AS(again.receive(proof), AuthError);
  }
}

TEST_CASE("a client is not fooled by a changed answer or a changed acceptance") {
  for (const bool changes_answer : {true, false}) {
    Pair pair = socket_pair();
    Client client(pair.client, kSecret);
    ServerHandshake server(kSecret, random_nonce());
    Bytes answer = server.receive(recv_exactly(pair.server, server.wants()));
    if (changes_answer) answer[kAnswerBytes - 1] ^= std::byte{1};
    pair.server.send_all(answer, Clock::now() + kPlenty);
    if (!changes_answer) {
      Bytes accept = server.receive(recv_exactly(pair.server, server.wants()));
      accept[0] ^= std::byte{1};
      pair.server.send_all(accept, Clock::now() + kPlenty);
    }
    CHECK_THROWS_AS(client.join(), AuthError);
  }
}

TEST_CASE("garbage and other protocols are refused at the first message") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    Bytes garbage(kHelloBytes);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    ServerHandshake server(kSecret, random_nonce());
    CHECK_THROWS_AS(server.receive(garbage), ProtocolError);
  }
  Bytes http(kHelloBytes, std::byte{' '});
  std::copy_n(reinterpret_cast<const std::byte*>("GET / HTTP/1.1"), 14, http.begin());
  ServerHandshake server(kSecret, random_nonce());
  CHECK_THROWS_AS(server.receive(http), ProtocolError);
}

TEST_CASE("two versions tell each other which they are, and neither gets through") {
  const Bytes ours = ClientHandshake(kSecret, random_nonce(), some_intro()).hello();
  Bytes theirs = ours;
  wire::Build later = wire::this_build();
  later.wire = 200;
  std::ranges::copy(wire::encode(later), theirs.begin());
  // Whether or not they have one secret.
  for (const std::string& secret : {kSecret, kWrongSecret}) {
    ServerHandshake server(secret, random_nonce());
    Bytes answer = server.receive(theirs);
    CHECK(answer.size() == kAnswerBytes);
    CHECK(wire::decode_build(answer) == wire::this_build());
    CHECK(server.other_build() == later);
    CHECK(server.wants() == 0);
    CHECK_FALSE(server.is_done());

    std::ranges::copy(wire::encode(later), answer.begin());  // As the other one would say it.
    ClientHandshake client(kSecret, random_nonce(), some_intro());
    CHECK_THROWS_WITH_AS(client.receive(answer),
                         doctest::Contains("it speaks version 200 of the wire (Gradring "),
                         wire::OtherBuild);
  }
}

TEST_CASE("builds of one version talk, whatever their releases") {
  Bytes hello = ClientHandshake(kSecret, random_nonce(), some_intro()).hello();
  wire::Build later = wire::this_build();
  later.release[2] += 1;
  std::ranges::copy(wire::encode(later), hello.begin());
  ServerHandshake server(kSecret, random_nonce());
  server.receive(hello);
  CHECK(server.wants() == kProofBytes);
}

TEST_CASE("the first version is named, and gets no answer, which it would not understand") {
  Bytes hello(kHelloBytes);
  std::ranges::copy(std::as_bytes(std::span("GRADRNG1")), hello.begin());
  ServerHandshake server(kSecret, random_nonce());
  CHECK_THROWS_WITH_AS(server.receive(hello), doctest::Contains("it speaks version 1 of the wire"),
                       wire::OtherBuild);
}

TEST_CASE("what a stranger can make the server take in has a fixed size") {
  ServerHandshake server(kSecret, random_nonce());
  CHECK(server.wants() == kHelloBytes);
  CHECK_THROWS_AS(server.receive(Bytes(kHelloBytes + 1)), InternalError);
  CHECK_THROWS_AS(server.receive(Bytes(kHelloBytes - 1)), InternalError);
}

TEST_CASE("a client gives up on a server that stays silent, and says so") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret, Clock::now() + Millis{20});
  CHECK_THROWS_AS(client.join(), TimedOut);
}

TEST_CASE("a client whose server goes away in between is told that the connection closed") {
  Pair pair = socket_pair();
  Client client(pair.client, kSecret);
  recv_exactly(pair.server, kHelloBytes);
  pair.server.reset();
  CHECK_THROWS_AS(client.join(), ProtocolError);
}

}  // namespace
}  // namespace gradring::transport::handshake_test
