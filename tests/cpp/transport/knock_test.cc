// The calling side of a new connection: it gets through where the door lets it, tells an ended
// process from a broken connection, and never waits.
#include "transport/joining/knock.h"

#include <doctest/doctest.h>

#include <string>

#include "transport/joining/door.h"
#include "transport/links/socket.h"

namespace gradring::transport::knock_test {
namespace {

using Outcome = Knock::Outcome;

const Credentials kSecret{"the secret"};
const std::string kWrongSecret = "another secret";
constexpr Millis kPlenty{20'000};
const Intro kIntro{Purpose::kControl, 0, 4, 2, 0, {}};

wire::Member at(int listener) {
  return {2, to_text(local_address(listener)), "", ""};
}

// Waits for the knock, not in it: `meanwhile` is what the other side does.
template <typename Meanwhile>
Outcome outcome_of(Knock& knock, const Meanwhile& meanwhile) {
  const Time deadline = Clock::now() + kPlenty;
  while (Clock::now() < deadline) {
    const Outcome outcome = knock.advance();
    if (outcome != Outcome::kWaiting) return outcome;
    meanwhile();
    pollfd entry = knock.wants();
    ::poll(&entry, 1, 1);
  }
  return Outcome::kWaiting;
}

TEST_CASE("a knock gets through a door of the same job, which learns who it is") {
  Door door(listen_tcp("127.0.0.1", 0, 8), Fd(), kSecret, 2);
  Knock knock(at(door.tcp_fd()), kSecret, kIntro);
  std::vector<Arrival> arrivals;
  const Outcome outcome = outcome_of(knock, [&] {
    for (Arrival& arrival : door.work(Clock::now())) arrivals.push_back(std::move(arrival));
  });
  REQUIRE(outcome == Outcome::kThrough);
  REQUIRE(arrivals.size() == 1);
  CHECK(arrivals[0].intro.from == 4);
  Connection mine = knock.take();
  const std::byte sent{42};
  std::byte got{};
  mine.send_all(std::span(&sent, 1), Clock::now() + kPlenty);
  arrivals[0].connection.recv_all(std::span(&got, 1), Clock::now() + kPlenty);
  CHECK(got == sent);
}

TEST_CASE("where nobody listens any more, the process has ended") {
  Fd listener = listen_tcp("127.0.0.1", 0, 8);
  const wire::Member member = at(listener.get());
  listener.reset();
  Knock knock(member, kSecret, kIntro);
  CHECK(outcome_of(knock, [] {}) == Outcome::kRefused);
  CHECK(knock.why() != "");
}

TEST_CASE("a port that has another owner now belongs to nobody of this job") {
  Door door(listen_tcp("127.0.0.1", 0, 8), Fd(), kWrongSecret, 2);
  Knock knock(at(door.tcp_fd()), kSecret, kIntro);
  CHECK(outcome_of(knock, [&] { door.work(Clock::now()); }) == Outcome::kRefused);
  CHECK(knock.why().find("GRADRING_SECRET") != std::string::npos);
}

TEST_CASE("a connection that closes during the handshake is broken, and its owner may try again") {
  const Fd listener = listen_tcp("127.0.0.1", 0, 8);
  Knock knock(at(listener.get()), kSecret, kIntro);
  const auto hang_up = [&] { accept_one(listener.get()).reset(); };
  CHECK(outcome_of(knock, hang_up) == Outcome::kBroken);
}

TEST_CASE("a knock at a door that does not answer waits without blocking") {
  const Fd listener = listen_tcp("127.0.0.1", 0, 8);
  Knock knock(at(listener.get()), kSecret, kIntro);
  for (int look = 0; look < 1000; ++look) REQUIRE(knock.advance() == Outcome::kWaiting);
  Connection server = accept_one(listener.get());
  std::byte hello[kHelloBytes];
  server.recv_all(hello, Clock::now() + kPlenty);  // It has said its part.
  CHECK(knock.advance() == Outcome::kWaiting);
  CHECK(knock.wants().events == POLLIN);
}

}  // namespace
}  // namespace gradring::transport::knock_test
