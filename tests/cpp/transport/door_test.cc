// The listening side: whoever proves the secret comes in, strangers are turned away, and nobody who
// is slow, silent or rude keeps the others waiting.
#include "transport/joining/door.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "base/config.h"
#include "base/error.h"
#include "transport/links/socket.h"

namespace gradring::transport::door_test {
namespace {

const std::string kSecret = "the secret";
constexpr Millis kPlenty{20'000};

struct House {
  explicit House(Encryption encryption = Encryption::kBetweenHosts)
      : door(listen_tcp("127.0.0.1", 0, 512), Fd(), {kSecret, encryption}, 0) {
    address = local_address(door.tcp_fd());
  }

  Connection call() const {
    std::string why;
    Connection fd = connect_tcp(address, Clock::now() + kPlenty, why);
    REQUIRE_MESSAGE(fd, why);
    return fd;
  }
  // Lets the door work until somebody is through.
  std::vector<Arrival> wait_for_arrival() {
    const Time deadline = Clock::now() + kPlenty;
    while (Clock::now() < deadline) {
      std::vector<pollfd> polls;
      door.add_polls(polls);
      ::poll(polls.data(), polls.size(), 100);
      std::vector<Arrival> arrivals = door.work(Clock::now());
      if (!arrivals.empty()) return arrivals;
    }
    return {};
  }
  // Lets the door work, at time `now`, until `fd` was hung up on.
  bool hangs_up(int fd, Time now) {
    const Time deadline = Clock::now() + kPlenty;
    std::array<std::byte, 256> bytes{};
    while (Clock::now() < deadline) {
      door.work(now);
      if (recv_some(fd, bytes, {}).closed) return true;
      wait_readable(fd, Clock::now() + Millis{1});
    }
    return false;
  }

  Door door;
  HostPort address;
};

// A guest that knows the secret, on a thread of its own.
std::thread good_guest(const House& house, Connection& fd, Rank from,
                       Encryption encryption = Encryption::kBetweenHosts) {
  fd = house.call();
  return std::thread([&fd, from, encryption] {
    shake_hands(fd, {kSecret, encryption}, {Purpose::kControl, 0, from, 0, 0, {}},
                Clock::now() + kPlenty);
  });
}

std::vector<std::byte> hello_of(const wire::Build& build) {
  const wire::BuildBytes bytes = wire::encode(build);
  std::vector<std::byte> hello(bytes.begin(), bytes.end());
  hello.resize(kHelloBytes);
  return hello;
}

Rank admits_one(House& house, Encryption encryption = Encryption::kBetweenHosts) {
  Connection fd;
  std::thread guest = good_guest(house, fd, 6, encryption);
  std::vector<Arrival> arrivals = house.wait_for_arrival();
  guest.join();
  REQUIRE(arrivals.size() == 1);
  return arrivals[0].intro.from;
}

// Calls with `credentials`, while the door works; what came of it.
std::exception_ptr outcome_of(House& house, const Credentials& credentials) {
  Connection connection = house.call();
  std::exception_ptr error;
  std::atomic<bool> has_gone{false};
  std::thread guest([&] {
    try {
      shake_hands(connection, credentials, {}, Clock::now() + kPlenty);
    } catch (...) {
      error = std::current_exception();
    }
    has_gone = true;
  });
  while (!has_gone) {
    house.door.work(Clock::now());
    wait_readable(house.door.tcp_fd(), Clock::now() + Millis{1});
  }
  guest.join();
  return error;
}

TEST_CASE("a guest with the secret is let in, and its connection is usable at once") {
  House house;
  Connection fd;
  std::thread guest = good_guest(house, fd, 6);
  std::vector<Arrival> arrivals = house.wait_for_arrival();
  guest.join();
  REQUIRE(arrivals.size() == 1);
  CHECK(arrivals[0].intro.from == 6);
  const std::byte sent{42};
  std::byte got{};
  fd.send_all(std::span(&sent, 1), Clock::now() + kPlenty);
  arrivals[0].connection.recv_all(std::span(&got, 1), Clock::now() + kPlenty);
  CHECK(got == sent);
}

TEST_CASE("what a guest sends right behind its handshake belongs to the connection's owner") {
  House house;
  Connection fd = house.call();
  std::thread guest([&] {
    shake_hands(fd, kSecret, {Purpose::kControl, 0, 1, 0, 0, {}}, Clock::now() + kPlenty);
    const std::array<std::byte, 3> message{std::byte{1}, std::byte{2}, std::byte{3}};
    fd.send_all(message, Clock::now() + kPlenty);
  });
  std::vector<Arrival> arrivals = house.wait_for_arrival();
  guest.join();
  REQUIRE(arrivals.size() == 1);
  house.door.work(Clock::now());
  std::array<std::byte, 3> got{};
  arrivals[0].connection.recv_all(got, Clock::now() + kPlenty);
  CHECK(got[2] == std::byte{3});
}

TEST_CASE("a stranger with another secret is turned away, and the next guest comes in") {
  House house;
  // It sees that the answer was not made with its secret, and goes.
  const auto error = outcome_of(house, {"a guess"});
  REQUIRE(error);
  CHECK_THROWS_AS(std::rethrow_exception(error), AuthError);
  CHECK(admits_one(house) == 6);
}

TEST_CASE("garbage is hung up on") {
  House house;
  Connection fd = house.call();
  const std::vector<std::byte> garbage(4096, std::byte{'G'});
  fd.send_all(garbage, Clock::now() + kPlenty);
  CHECK(house.hangs_up(fd.get(), Clock::now()));
  CHECK(admits_one(house) == 6);
}

TEST_CASE("a proof with the wrong secret is hung up on") {
  House house;
  Connection fd = house.call();
  const std::vector<std::byte> hello = hello_of(wire::this_build());
  fd.send_all(hello, Clock::now() + kPlenty);
  house.door.work(Clock::now());
  fd.send_all(std::vector<std::byte>(kProofBytes), Clock::now() + kPlenty);
  CHECK(house.hangs_up(fd.get(), Clock::now()));
}

TEST_CASE("who comes with another version is told which one is here, and the door knows of it") {
  House house;
  Connection fd = house.call();
  wire::Build later = wire::this_build();
  later.wire = 200;
  fd.send_all(hello_of(later), Clock::now() + kPlenty);
  CHECK(house.hangs_up(fd.get(), Clock::now()));
  CHECK(house.door.other_build().find("it speaks version 200 of the wire") != std::string::npos);
  CHECK(admits_one(house) == 6);
}

TEST_CASE("who does not finish in time is hung up on") {
  House house;
  Connection fd = house.call();
  const std::byte first{'G'};
  fd.send_all(std::span(&first, 1), Clock::now() + kPlenty);
  const Time now = Clock::now();
  wait_readable(house.door.tcp_fd(), now + kPlenty);
  CHECK(house.door.work(now).empty());
  CHECK(house.hangs_up(fd.get(), now + limits::kHandshakeTime));
}

TEST_CASE("a guest who dribbles its bytes does not keep others waiting") {
  House house;
  std::vector<Connection> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(house.call());
    const std::byte byte{'G'};
    slow.back().send_all(std::span(&byte, 1), Clock::now() + kPlenty);
  }
  CHECK(admits_one(house) == 6);
}

TEST_CASE("a crowd of strangers has a limit, and shuts nobody out") {
  House house;
  std::vector<Connection> crowd;
  for (std::size_t i = 0; i < limits::kHandshakesPending; ++i) {
    crowd.push_back(house.call());
    wait_readable(house.door.tcp_fd(), Clock::now() + kPlenty);
    house.door.work(Clock::now());
  }
  std::byte byte{};
  CHECK_FALSE(recv_some(crowd.front().get(), std::span(&byte, 1), {}).closed);
  CHECK(admits_one(house) == 6);
  CHECK(house.hangs_up(crowd.front().get(), Clock::now()));
  CHECK_FALSE(recv_some(crowd.back().get(), std::span(&byte, 1), {}).closed);
}

TEST_CASE("a guest that encrypts is let in, and both ends go on encrypted") {
  for (const Encryption ours : {Encryption::kAlways, Encryption::kNever}) {  // Also asked by none.
    House house(ours);
    Connection guest_end;
    std::thread guest = good_guest(house, guest_end, 6, Encryption::kAlways);
    std::vector<Arrival> arrivals = house.wait_for_arrival();
    guest.join();
    REQUIRE(arrivals.size() == 1);
    CHECK(arrivals[0].intro.from == 6);
    CHECK(arrivals[0].connection.is_encrypted());
    CHECK(guest_end.is_encrypted());
    const std::byte sent{42};
    std::byte got{};
    arrivals[0].connection.send_all(std::span(&sent, 1), Clock::now() + kPlenty);
    guest_end.recv_all(std::span(&got, 1), Clock::now() + kPlenty);
    CHECK(got == sent);
  }
}

TEST_CASE("who should encrypt and does not is refused and told which variable differs") {
  House house(Encryption::kAlways);
  const auto error = outcome_of(house, {kSecret, Encryption::kNever});
  REQUIRE(error);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("GRADRING_TLS is off here"),
                       AuthError);
  CHECK(admits_one(house, Encryption::kAlways) == 6);
}

TEST_CASE("who encrypts between hosts and takes this for its own is not told that it is off") {
  House house(Encryption::kAlways);
  const auto error = outcome_of(house, {kSecret, Encryption::kBetweenHosts});
  REQUIRE(error);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                       doctest::Contains("auto where it is on there"), AuthError);
  CHECK(outcome_of(house, {kSecret, Encryption::kAlways}) == nullptr);
}

// Lets the door work until `guest`, on a thread of its own, has been hung up on.
void hang_up_on(Door& door, const std::function<void()>& guest) {
  std::atomic<bool> was_hung_up_on{false};
  std::atomic<bool> has_gone{false};
  std::thread thread([&] {
    try {
      guest();
    } catch (const ProtocolError&) {
      was_hung_up_on = true;
    }
    has_gone = true;
  });
  std::size_t arrivals = 0;
  while (!has_gone) {
    arrivals += door.work(Clock::now()).size();
    wait_readable(door.tcp_fd(), Clock::now() + Millis{1});
  }
  thread.join();
  CHECK(was_hung_up_on);
  CHECK(arrivals == 0);
}

TEST_CASE("a guest whose memory cannot come over its connection is refused, encrypted or not") {
  House house(Encryption::kNever);
  std::byte more{};
  for (const Encryption theirs : {Encryption::kAlways, Encryption::kNever})
    for (const auto purpose : {Purpose::kSharedLink, Purpose::kSegment, Purpose::kSharedParameters})
      hang_up_on(house.door, [&] {
        Connection fd = house.call();
        shake_hands(fd, {kSecret, theirs}, {purpose, 0, 6, 0, 0, {}}, Clock::now() + kPlenty);
        fd.recv_all(std::span(&more, 1), Clock::now() + kPlenty);
      });
  Door local(listen_tcp("127.0.0.1", 0, 5), listen_unix("gradring-door-test", 5), {kSecret}, 0);
  hang_up_on(local, [&] {
    std::string why;
    Connection fd = connect_unix("gradring-door-test", Clock::now() + kPlenty, why);
    fd.encrypt(kSecret, Tls::End::kClient);
    fd.send_all(std::span(&more, 1), Clock::now() + kPlenty);
  });
}

TEST_CASE("a stranger that encrypts learns only that its secret is another") {
  House house(Encryption::kAlways);
  const auto error = outcome_of(house, {"a guess", Encryption::kAlways});
  REQUIRE(error);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(error), doctest::Contains("GRADRING_SECRET"),
                       AuthError);
  CHECK(admits_one(house, Encryption::kAlways) == 6);
}

// This process opens nothing more while this lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get());
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_CASE("out of descriptors, the door does not wake its poller, and soon it tries again") {
  House house;
  const Connection fd = house.call();
  const Time now = Clock::now();
  std::vector<pollfd> polls;
  {
    const NoDescriptors none;
    house.door.work(now);
    house.door.add_polls(polls);
    CHECK(polls.empty());
  }
  house.door.work(now + Millis{99});
  house.door.add_polls(polls);
  CHECK(polls.empty());
  house.door.work(now + Millis{100});
  house.door.add_polls(polls);
  CHECK(polls.size() == 2);  // The listener and who was waiting.
}

}  // namespace
}  // namespace gradring::transport::door_test
