// Links over TCP: a stream both ways, the last bytes and then the end of a peer that has gone.
#include "transport/links/tcp_link.h"

#include <doctest/doctest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <random>
#include <string>
#include <thread>

#include "transport/links/path.h"

namespace gradring::transport::tcp_link_test {
namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  std::unique_ptr<TcpLink> a;
  std::unique_ptr<TcpLink> b;
};

Pair make_pair(const std::string& host) {
  const Fd listener = listen_tcp(host, 0, 4);
  std::string why;
  Fd near = connect_tcp(local_address(listener.get()), Clock::now() + Millis{10'000}, why);
  REQUIRE_MESSAGE(near, why);
  REQUIRE(wait_readable(listener.get(), Clock::now() + Millis{10'000}));
  Pair pair;
  pair.a = std::make_unique<TcpLink>(std::move(near));
  pair.b = std::make_unique<TcpLink>(accept_one(listener.get()));
  return pair;
}

void wait(const Link& link, bool wants_recv, bool wants_send) {
  pollfd entry{link.fd(), link.poll_events(wants_recv, wants_send), 0};
  ::poll(&entry, 1, 10'000);
}

Bytes read_to_end(Link& link) {
  Bytes all;
  Bytes piece(70'000);
  while (true) {
    const Io io = link.recv_some(std::span(piece).first(64), std::span(piece).subspan(64));
    all.insert(all.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    if (io.closed) return all;
    if (io.bytes == 0) wait(link, true, false);
  }
}

int option_of(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  REQUIRE(::getsockopt(fd, level, option, &value, &length) == 0);
  return value;
}

// What every kernel grants: net.core.rmem_max and wmem_max are never less by default.
constexpr int kGranted = 100'000;
constexpr int kRefused = 1 << 30;

TEST_CASE("buffers within a host are as large as asked for, and the window may fill them") {
  const Fd listener = listen_tcp("127.0.0.1", 0, 4);
  std::string why;
  const Fd fd = connect_tcp(local_address(listener.get()), Clock::now() + Millis{10'000}, why);
  REQUIRE_MESSAGE(fd, why);
  tune_data_socket(fd.get(), kGranted);
  CHECK(option_of(fd.get(), SOL_SOCKET, SO_SNDBUF) == 2 * kGranted);
  CHECK(option_of(fd.get(), SOL_SOCKET, SO_RCVBUF) == 2 * kGranted);
  CHECK(option_of(fd.get(), IPPROTO_TCP, TCP_WINDOW_CLAMP) == kGranted);
}

TEST_CASE("a receiver's buffer from another host stays the kernel's, which follows the path") {
  const Fd elsewhere(
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // Its other end is not here.
  const int before = option_of(elsewhere.get(), SOL_SOCKET, SO_RCVBUF);
  tune_data_socket(elsewhere.get(), kGranted);
  CHECK(option_of(elsewhere.get(), SOL_SOCKET, SO_SNDBUF) == 2 * kGranted);
  CHECK(option_of(elsewhere.get(), SOL_SOCKET, SO_RCVBUF) == before);
}

TEST_CASE("a buffer that the kernel would cut short stays the kernel's") {
  const Fd listener = listen_tcp("127.0.0.1", 0, 4);
  std::string why;
  const Fd fd = connect_tcp(local_address(listener.get()), Clock::now() + Millis{10'000}, why);
  REQUIRE_MESSAGE(fd, why);
  const int sent = option_of(fd.get(), SOL_SOCKET, SO_SNDBUF);
  const int received = option_of(fd.get(), SOL_SOCKET, SO_RCVBUF);
  tune_data_socket(fd.get(), kRefused);
  CHECK(option_of(fd.get(), SOL_SOCKET, SO_SNDBUF) == sent);
  CHECK(option_of(fd.get(), SOL_SOCKET, SO_RCVBUF) == received);
}

TEST_CASE("a stream arrives whole and in order, and then the end") {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    CAPTURE(host);
    Pair pair = make_pair(host);
    std::mt19937_64 random(7);
    Bytes sent(9'000'000);
    for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
    std::thread writer([&] {
      std::size_t at = 0;
      while (at < sent.size()) {
        const auto rest = std::span<const std::byte>(sent).subspan(at);
        const std::size_t head = std::min<std::size_t>(rest.size(), 64);
        const Io io = pair.a->send_some(rest.first(head), rest.subspan(head));
        at += io.bytes;
        if (io.bytes == 0) wait(*pair.a, false, true);
      }
      pair.a.reset();
    });
    const Bytes got = read_to_end(*pair.b);
    writer.join();
    CHECK((got == sent));
  }
}

TEST_CASE(
    "short messages that lie behind the one asked for come with it, and are asked for later") {
  Pair pair = make_pair("127.0.0.1");
  Bytes sent(20 * 70);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7);
  REQUIRE(pair.a->send_some({}, sent).bytes == sent.size());
  pair.a.reset();
  wait(*pair.b, true, false);
  Bytes head(64);
  Bytes body(6);
  Bytes got;
  // Also where a call ends in the middle of what was read.
  const auto take = [&](std::size_t of_head, std::size_t of_body) {
    const Io io = pair.b->recv_some(std::span(head).first(of_head), std::span(body).first(of_body));
    REQUIRE_FALSE(io.closed);
    REQUIRE(io.bytes == of_head + of_body);
    got.insert(got.end(), head.begin(), head.begin() + static_cast<std::ptrdiff_t>(of_head));
    got.insert(got.end(), body.begin(), body.begin() + static_cast<std::ptrdiff_t>(of_body));
  };
  take(64, 6);
  CHECK_FALSE(pair.b->prepare_sleep(true, false));  // The socket is empty, the link is not.
  CHECK(pair.b->prepare_sleep(false, true));
  take(10, 0);
  take(0, 3);
  take(51, 6);
  for (int i = 2; i < 20; ++i) take(64, 6);
  CHECK(got == sent);
  CHECK(pair.b->prepare_sleep(true, false));
  const Io end = pair.b->recv_some(head, body);
  CHECK(end.bytes == 0);
  CHECK(end.closed);
}

TEST_CASE("what lies behind a short message is longer than the room for it") {
  Pair pair = make_pair("127.0.0.1");
  Bytes sent(70 + 300'000);
  std::mt19937_64 random(8);
  for (std::byte& byte : sent) byte = static_cast<std::byte>(random());
  std::thread writer([&] {
    for (std::size_t at = 0; at < sent.size();) {
      const Io io = pair.a->send_some({}, std::span<const std::byte>(sent).subspan(at));
      at += io.bytes;
      if (io.bytes == 0) wait(*pair.a, false, true);
    }
  });
  Bytes got(sent.size());
  for (std::size_t at = 0; at < got.size();) {
    // One short message, then a long one.
    const std::size_t of_head = at < 64 ? 64 - at : 0;
    const std::size_t of_body = at < 70 ? 70 - at - of_head : got.size() - at;
    const Io io = pair.b->recv_some(std::span(got).subspan(at, of_head),
                                    std::span(got).subspan(at + of_head, of_body));
    at += io.bytes;
    if (io.bytes == 0) wait(*pair.b, true, false);
  }
  writer.join();
  CHECK((got == sent));
}

TEST_CASE("nothing there yet is neither bytes nor the end") {
  Pair pair = make_pair("127.0.0.1");
  std::byte byte{};
  const Io io = pair.b->recv_some({}, std::span(&byte, 1));
  CHECK(io.bytes == 0);
  CHECK_FALSE(io.closed);
}

TEST_CASE("a link that nobody reads takes no more after a while, without blocking") {
  Pair pair = make_pair("127.0.0.1");
  const Bytes piece(1 << 20);
  std::size_t taken = 0;
  std::size_t refused = 0;
  for (int i = 0; i < 1000 && refused == 0; ++i) {
    const Io io = pair.a->send_some({}, piece);
    taken += io.bytes;
    if (io.bytes == 0) ++refused;
  }
  CHECK(taken > 0);
  CHECK(refused == 1);
}

TEST_CASE("sending to a peer that has gone ends with the news of it") {
  Pair pair = make_pair("127.0.0.1");
  pair.b.reset();
  const Bytes piece(1000);
  bool is_closed = false;
  for (int i = 0; i < 1000 && !is_closed; ++i) {
    is_closed = pair.a->send_some({}, piece).closed;
    if (!is_closed) wait(*pair.a, true, false);
  }
  CHECK(is_closed);
}

TEST_CASE("a link knows its peer's address, also after the peer has gone") {
  Pair pair = make_pair("127.0.0.1");
  const std::string address = pair.a->peer_address();
  CHECK(address.rfind("127.0.0.1:", 0) == 0);
  pair.b.reset();
  CHECK(pair.a->peer_address() == address);
}

TEST_CASE("within one host a connection never had the system's congestion control") {
  const auto control = [](int fd) {
    std::array<char, 16> name{};
    socklen_t size = name.size();
    REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0);
    return std::string(name.data());
  };
  const Fd listener = listen_tcp("127.0.0.1", 0, 4);
  CHECK(control(listener.get()) == "reno");  // So that the kernel's half has it from the start.
  int error = 0;
  const Fd near = begin_connect_tcp(local_address(listener.get()), error);
  REQUIRE(near);
  CHECK(control(near.get()) == "reno");
  REQUIRE(wait_readable(listener.get(), Clock::now() + Millis{10'000}));
  CHECK(control(accept_one(listener.get()).get()) == "reno");
}

TEST_CASE(
    "the kernel knows how long the way of a connection is, and of another socket says nothing") {
  const Pair pair = make_pair("127.0.0.1");
  CHECK(path_us(pair.a->fd()) > 0);
  CHECK(path_us(pair.b->fd()) > 0);
  CHECK(path_us(pair.b->fd()) < 1'000'000);
  const Fd local = listen_unix(str("gradring-path-", ::getpid()), 1);
  CHECK(path_us(local.get()) == 0);
}

TEST_CASE("a connection can be told to end when its peer's host has gone silent") {
  const Pair pair = make_pair("127.0.0.1");
  end_with_silence(pair.a->fd(), Millis{20'000});
  const auto option = [&](int level, int which) {
    int value = 0;
    socklen_t size = sizeof value;
    REQUIRE(::getsockopt(pair.a->fd(), level, which, &value, &size) == 0);
    return value;
  };
  CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) == 5);
  CHECK(option(IPPROTO_TCP, TCP_KEEPINTVL) == 5);
  CHECK(option(IPPROTO_TCP, TCP_USER_TIMEOUT) == 20'000);
}

// The address of a listener, as a name's would come.
struct Address {
  explicit Address(int listener) {
    socklen_t length = sizeof storage;
    REQUIRE(::getsockname(listener, reinterpret_cast<sockaddr*>(&storage), &length) == 0);
    entry.ai_family = AF_INET;
    entry.ai_addr = reinterpret_cast<sockaddr*>(&storage);
    entry.ai_addrlen = length;
  }
  sockaddr_in storage{};
  addrinfo entry{};
};

// Fills the queue of one that nobody accepts from: then it is silent.
std::vector<Fd> crowd_before(const Fd& mute) {
  std::string why;
  std::vector<Fd> crowd;
  for (const auto until = Clock::now() + Millis{10'000}; Clock::now() < until;) {
    crowd.push_back(connect_tcp(local_address(mute.get()), Clock::now() + Millis{50}, why));
    if (!crowd.back()) break;
  }
  REQUIRE_FALSE(crowd.back());
  return crowd;
}

TEST_CASE("a name's first address that never answers leaves its second one time to") {
  const Fd mute = listen_tcp("127.0.0.1", 0, 0);
  const Fd good = listen_tcp("127.0.0.1", 0, 4);
  const std::vector<Fd> crowd = crowd_before(mute);
  std::string why;
  Address first(mute.get());
  Address second(good.get());
  first.entry.ai_next = &second.entry;
  const Fd fd = connect_to_one_of(&first.entry, Clock::now() + Millis{400}, why);
  REQUIRE_MESSAGE(fd, why);
  CHECK(peer_text(fd.get()) == to_text(local_address(good.get())));
}

TEST_CASE("of a name none of whose addresses answers, what each has said is told") {
  const Fd mute = listen_tcp("127.0.0.1", 0, 0);
  Fd closed = listen_tcp("127.0.0.2", 0, 4);
  const std::vector<Fd> crowd = crowd_before(mute);
  Address first(mute.get());
  Address second(closed.get());
  closed.reset();
  first.entry.ai_next = &second.entry;
  std::string why;
  CHECK_FALSE(connect_to_one_of(&first.entry, Clock::now() + Millis{400}, why));
  CHECK(why == "127.0.0.1: no answer, 127.0.0.2: Connection refused");
  CHECK_FALSE(connect_to_one_of(&second.entry, Clock::now() + Millis{400}, why));
  CHECK(why == "Connection refused");
  second.entry.ai_next = &first.entry;
  first.entry.ai_addr = second.entry.ai_addr;
  first.entry.ai_next = nullptr;
  CHECK_FALSE(connect_to_one_of(&second.entry, Clock::now() + Millis{400}, why));
  CHECK(why == "Connection refused");
}

}  // namespace
}  // namespace gradring::transport::tcp_link_test
