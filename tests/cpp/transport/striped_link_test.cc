// Links of several streams: one stream of bytes both ways, whatever each of those underneath does.
#include "transport/links/striped_link.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <array>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/links/memory_link.h"
#include "transport/links/tcp_link.h"

namespace gradring::transport::striped_link_test {
namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  std::unique_ptr<StripedLink> a;
  std::unique_ptr<StripedLink> b;
  std::vector<std::shared_ptr<MemoryWire>> wires;
};

// The ends list their streams in different orders: nothing says which is which.
Pair over_memory(const MemoryWeather& weather, std::size_t count, std::uint64_t seed,
                 std::size_t capacity_bytes = 64 * 1024) {
  Pair pair;
  std::vector<std::unique_ptr<Link>> a;
  std::vector<std::unique_ptr<Link>> b;
  for (std::size_t nth = 0; nth < count; ++nth) {
    MemoryScript script;
    script.seed = seed * 31 + nth;
    script.capacity_bytes = capacity_bytes;
    pair.wires.push_back(std::make_shared<MemoryWire>(weather, script));
    a.push_back(std::make_unique<MemoryLink>(pair.wires.back(), 0));
    b.insert(b.begin(), std::make_unique<MemoryLink>(pair.wires.back(), 1));
  }
  pair.a = std::make_unique<StripedLink>(std::move(a));
  pair.b = std::make_unique<StripedLink>(std::move(b));
  return pair;
}

Pair over_tcp(std::size_t count) {
  const Fd listener = listen_tcp("127.0.0.1", 0, 64);
  std::vector<std::unique_ptr<Link>> a;
  std::vector<std::unique_ptr<Link>> b;
  for (std::size_t nth = 0; nth < count; ++nth) {
    std::string why;
    Fd near = connect_tcp(local_address(listener.get()), Clock::now() + Millis{10'000}, why);
    REQUIRE_MESSAGE(near, why);
    REQUIRE(wait_readable(listener.get(), Clock::now() + Millis{10'000}));
    a.push_back(std::make_unique<TcpLink>(std::move(near)));
    b.push_back(std::make_unique<TcpLink>(accept_one(listener.get())));
  }
  return {
      std::make_unique<StripedLink>(std::move(a)), std::make_unique<StripedLink>(std::move(b)), {}};
}

Bytes some_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Offers messages of a header and a body, the rest again until all of it is taken, as runs do.
class Sender {
 public:
  Sender(Link& link, const Bytes& bytes, std::uint64_t seed)
      : link_(link), bytes_(bytes), random_(seed) {}

  bool is_done() const { return sent_ == bytes_.size(); }
  bool turn() {
    if (is_done()) return false;
    if (sent_ == message_ends_) {
      constexpr std::size_t kSizes[] = {1, 64, 300, 5000, 200'000, 700'000};
      head_ends_ = std::min(bytes_.size(), sent_ + random_() % 400);
      message_ends_ = std::min(bytes_.size(), head_ends_ + kSizes[random_() % 6]);
    }
    const std::span all(bytes_);
    const std::size_t head_at = std::min(sent_, head_ends_);
    const std::size_t body_at = std::max(sent_, head_ends_);
    const Io io = link_.send_some(all.subspan(head_at, head_ends_ - head_at),
                                  all.subspan(body_at, message_ends_ - body_at));
    sent_ += io.bytes;
    is_closed_ = io.closed;
    return io.bytes > 0;
  }
  bool is_closed() const { return is_closed_; }

 private:
  Link& link_;
  const Bytes& bytes_;
  std::mt19937_64 random_;
  std::size_t sent_ = 0;
  std::size_t head_ends_ = 0;
  std::size_t message_ends_ = 0;
  bool is_closed_ = false;
};

class Receiver {
 public:
  Receiver(Link& link, std::uint64_t seed) : link_(link), random_(seed) {}

  bool turn() {
    Bytes room(1 + random_() % 300'000);
    const std::size_t head = random_() % (room.size() + 1);
    const Io io = link_.recv_some(std::span(room).first(head), std::span(room).subspan(head));
    got_.insert(got_.end(), room.begin(), room.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    is_closed_ = io.closed;
    return io.bytes > 0;
  }
  const Bytes& got() const { return got_; }
  bool is_closed() const { return is_closed_; }

 private:
  Link& link_;
  std::mt19937_64 random_;
  Bytes got_;
  bool is_closed_ = false;
};

TEST_CASE("what is sent arrives once and in order, over streams that delay and cut it") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    MemoryWeather weather;
    weather.max_delay = std::chrono::microseconds{seed % 3 == 0 ? 0 : 4000};
    weather.short_percent = static_cast<std::uint32_t>(seed % 4 * 20);
    Pair pair = over_memory(weather, 1 + seed % 5, seed, seed % 2 == 0 ? 3000 : 300'000);
    const Bytes there = some_bytes(1'000'000, seed);
    const Bytes back = some_bytes(700'000, seed + 1);
    Sender a_sends(*pair.a, there, seed);
    Sender b_sends(*pair.b, back, seed + 2);
    Receiver a_gets(*pair.a, seed + 3);
    Receiver b_gets(*pair.b, seed + 4);
    int idle = 0;
    while ((a_gets.got().size() < back.size() || b_gets.got().size() < there.size()) && idle < 50) {
      bool moved = a_sends.turn();
      moved |= b_sends.turn();
      moved |= a_gets.turn();
      moved |= b_gets.turn();
      idle = moved ? 0 : idle + 1;
      weather.now += std::chrono::microseconds{500};
    }
    REQUIRE(b_gets.got() == there);
    REQUIRE(a_gets.got() == back);
  }
}

TEST_CASE("a stream that takes nothing is passed over") {
  const MemoryWeather weather;
  Pair pair = over_memory(weather, 3, 1);
  pair.wires[1]->set_silent(true);
  const Bytes bytes = some_bytes(3 << 20, 1);
  Sender sender(*pair.a, bytes, 2);
  Receiver receiver(*pair.b, 3);
  while (sender.turn() | receiver.turn()) {
  }
  // One piece stands in its way, at the most what it takes.
  CHECK_FALSE(sender.is_done());
  pair.wires[1]->set_silent(false);
  while (sender.turn() | receiver.turn()) {
  }
  CHECK(receiver.got() == bytes);
}

TEST_CASE("who hangs up is heard of after the last of its bytes, whichever stream ends first") {
  MemoryWeather weather;
  weather.max_delay = std::chrono::microseconds{5000};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Pair pair = over_memory(weather, 4, seed, 1 << 20);
    const Bytes bytes = some_bytes(2'000'000, seed);
    Sender sender(*pair.a, bytes, seed);
    while (!sender.is_done()) REQUIRE(sender.turn());
    pair.a.reset();
    Receiver receiver(*pair.b, seed);
    for (int turn = 0; turn < 10'000 && !receiver.is_closed(); ++turn) {
      if (!receiver.turn()) weather.now += std::chrono::microseconds{100};
    }
    CHECK(receiver.is_closed());
    REQUIRE(receiver.got() == bytes);
  }
}

TEST_CASE("where one stream breaks, both ends hear that the link is over") {
  for (const bool loses_bytes : {false, true}) {
    const MemoryWeather weather;
    Pair pair = over_memory(weather, 3, 7, 1 << 20);
    const Bytes bytes = some_bytes(900'000, 1);
    Sender sender(*pair.a, bytes, 1);
    sender.turn();
    pair.wires[2]->break_off(loses_bytes);
    Receiver b_gets(*pair.b, 2);
    Receiver a_gets(*pair.a, 3);
    for (int turn = 0; turn < 1000 && !b_gets.is_closed(); ++turn) b_gets.turn();
    // The peer that hears of it lets its end go.
    for (int turn = 0; turn < 1000 && !a_gets.is_closed(); ++turn) a_gets.turn();
    while (!sender.is_closed() && !sender.is_done()) sender.turn();
    pair.a.reset();
    for (int turn = 0; turn < 1000 && !b_gets.is_closed(); ++turn) b_gets.turn();
    CHECK(a_gets.is_closed());
    CHECK(b_gets.is_closed());
    CHECK(std::equal(b_gets.got().begin(), b_gets.got().end(), bytes.begin()));
  }
}

void wait(Link& link, bool wants_recv, bool wants_send) {
  if (link.prepare_sleep(wants_recv, wants_send)) {
    pollfd entry{link.fd(), link.poll_events(wants_recv, wants_send), 0};
    REQUIRE(::poll(&entry, 1, 10'000) == 1);  // Woken, not timed out.
  }
  link.finish_sleep();
}

TEST_CASE("over TCP, who sleeps is woken for what it waits for") {
  Pair pair = over_tcp(4);
  const Bytes bytes = some_bytes(40 << 20, 1);
  std::thread other([&] {
    Sender sender(*pair.a, bytes, 1);
    while (!sender.is_done() && !sender.is_closed())
      if (!sender.turn()) wait(*pair.a, false, true);
    pair.a->hang_up();
  });
  Receiver receiver(*pair.b, 2);
  while (!receiver.is_closed())
    if (!receiver.turn() && !receiver.is_closed()) wait(*pair.b, true, false);
  other.join();
  CHECK(receiver.got() == bytes);
}

// A link whose other end is one connection each, and in the test's hands.
std::unique_ptr<StripedLink> link_of_two(std::vector<TcpLink>& peers) {
  std::vector<std::unique_ptr<Link>> ends;
  const Fd listener = listen_tcp("127.0.0.1", 0, 4);
  for (int nth = 0; nth < 2; ++nth) {
    std::string why;
    peers.emplace_back(
        connect_tcp(local_address(listener.get()), Clock::now() + Millis{10'000}, why));
    REQUIRE(wait_readable(listener.get(), Clock::now() + Millis{10'000}));
    ends.push_back(std::make_unique<TcpLink>(accept_one(listener.get())));
  }
  return std::make_unique<StripedLink>(std::move(ends));
}

TEST_CASE("a stream that is ahead wakes nobody") {
  std::vector<TcpLink> peers;
  const auto striped = link_of_two(peers);
  StripedLink& link = *striped;
  // The second piece comes before the first.
  const std::array<std::uint32_t, 3> second{1, 4, 0x22222222};
  const std::array<std::uint32_t, 3> first{0, 4, 0x11111111};
  REQUIRE(peers[0].send_some({}, std::as_bytes(std::span(second))).bytes == sizeof second);
  std::array<std::uint32_t, 2> got{};
  const auto room = std::as_writable_bytes(std::span(got));
  wait(link, true, false);
  CHECK(link.recv_some({}, room).bytes == 0);
  REQUIRE(link.prepare_sleep(true, false));
  pollfd entry{link.fd(), link.poll_events(true, false), 0};
  CHECK(::poll(&entry, 1, 0) == 0);
  REQUIRE(peers[1].send_some({}, std::as_bytes(std::span(first))).bytes == sizeof first);
  wait(link, true, false);
  CHECK(link.recv_some({}, room).bytes == sizeof got);
  CHECK(got == std::array<std::uint32_t, 2>{0x11111111, 0x22222222});
}

TEST_CASE("nobody sleeps for a piece whose beginning was read while another was looked for") {
  std::vector<TcpLink> peers;
  const auto link = link_of_two(peers);
  const std::array<std::uint32_t, 3> second{1, 4, 0x22222222};
  const std::array<std::uint32_t, 3> first{0, 4, 0x11111111};
  REQUIRE(peers[0].send_some({}, std::as_bytes(std::span(second))).bytes == sizeof second);
  REQUIRE(peers[1].send_some({}, std::as_bytes(std::span(first))).bytes == sizeof first);
  std::uint32_t got = 0;
  const auto room = std::as_writable_bytes(std::span(&got, 1));
  while (link->recv_some({}, room).bytes == 0) wait(*link, true, false);
  CHECK(got == 0x11111111);
  wait(*link, true, false);
  CHECK(link->recv_some({}, room).bytes == sizeof got);
  CHECK(got == 0x22222222);
}

TEST_CASE("nobody sleeps over an end that was found behind the last bytes") {
  std::vector<TcpLink> peers;
  const auto link = link_of_two(peers);
  const std::array<std::uint32_t, 3> piece{0, 4, 0x11111111};
  REQUIRE(peers[0].send_some({}, std::as_bytes(std::span(piece))).bytes == sizeof piece);
  peers.clear();
  std::array<std::byte, 8> room{};
  while (link->recv_some({}, room).bytes == 0) wait(*link, true, false);
  Io io;
  while (!io.closed) {
    wait(*link, true, false);
    io = link->recv_some({}, room);
    CHECK(io.bytes == 0);
  }
}

}  // namespace
}  // namespace gradring::transport::striped_link_test
