// Links through shared memory: a stream of bytes both ways, sleepers are woken, the last bytes of a
// peer that has gone still arrive, and what a peer writes into the counters cannot hurt.
#include "transport/links/shm_link.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <random>
#include <thread>

#include "base/error.h"

namespace gradring::transport::shm_link_test {
namespace {

using Bytes = std::vector<std::byte>;

struct Pair {
  std::unique_ptr<ShmLink> a;
  std::unique_ptr<ShmLink> b;
  SharedMemory memory;  // A third mapping, to look at it and to spoil it.
};

SharedMemory another_mapping(const SharedMemory& memory) {
  return SharedMemory::attach(Fd(::dup(memory.fd())), ShmLink::kMemoryBytes);
}

Pair make_pair() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  SharedMemory memory = SharedMemory::create(ShmLink::kMemoryBytes);
  Pair pair;
  pair.a = std::make_unique<ShmLink>(another_mapping(memory), Fd(ends[0]), true);
  pair.b = std::make_unique<ShmLink>(another_mapping(memory), Fd(ends[1]), false);
  pair.memory = std::move(memory);
  return pair;
}

// Byte `index` of the stream with this seed.
std::byte byte_at(std::uint64_t seed, std::uint64_t index) {
  return static_cast<std::byte>((index * 2654435761u + seed) >> 7);
}

void sleep_for(Link& link, bool wants_recv, bool wants_send) {
  if (link.prepare_sleep(wants_recv, wants_send)) {
    pollfd entry{link.fd(), link.poll_events(wants_recv, wants_send), 0};
    ::poll(&entry, 1, 10'000);
  }
  link.finish_sleep();
}

// Sends `total` bytes of one stream while receiving as many of the other, in pieces of random size;
// sleeps whenever nothing moves. Returns whether every byte was right.
bool stream(Link& link, std::uint64_t out_seed, std::uint64_t in_seed, std::uint64_t total) {
  std::mt19937_64 random(out_seed);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  bool is_right = true;
  Bytes piece;
  while (sent < total || received < total) {
    bool moved = false;
    if (sent < total) {
      piece.resize(std::min<std::uint64_t>(total - sent, 1 + random() % 200'000));
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = byte_at(out_seed, sent + i);
      const std::size_t head = random() % (piece.size() + 1);
      const Io io = link.send_some(std::span(piece).first(head), std::span(piece).subspan(head));
      is_right = is_right && !io.closed;
      sent += io.bytes;
      moved |= io.bytes > 0;
    }
    if (received < total) {
      piece.resize(std::min<std::uint64_t>(total - received, 1 + random() % 200'000));
      const std::size_t head = random() % (piece.size() + 1);
      const Io io = link.recv_some(std::span(piece).first(head), std::span(piece).subspan(head));
      is_right = is_right && !io.closed;
      for (std::size_t i = 0; i < io.bytes; ++i)
        is_right = is_right && piece[i] == byte_at(in_seed, received + i);
      received += io.bytes;
      moved |= io.bytes > 0;
    }
    if (!moved) sleep_for(link, received < total, sent < total);
  }
  return is_right;
}

TEST_CASE("megabytes in both directions arrive in order, through sleeping and waking") {
  Pair pair = make_pair();
  constexpr std::uint64_t kTotal = 12'000'000;
  bool is_a_right = false;
  std::thread a([&] { is_a_right = stream(*pair.a, 1, 2, kTotal); });
  const bool is_b_right = stream(*pair.b, 2, 1, kTotal);
  a.join();
  CHECK(is_a_right);
  CHECK(is_b_right);
}

TEST_CASE("a full ring takes no more, and what it holds arrives whole") {
  Pair pair = make_pair();
  Bytes bytes(limits::kRingBytes + 1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(3, i);
  CHECK(pair.a->send_some({}, bytes).bytes == limits::kRingBytes);
  CHECK(pair.a->send_some({}, bytes).bytes == 0);
  Bytes got(bytes.size());
  CHECK(pair.b->recv_some({}, got).bytes == limits::kRingBytes);
  got.resize(limits::kRingBytes);
  bytes.resize(limits::kRingBytes);
  CHECK((got == bytes));
}

TEST_CASE("there is no sleep while something can be done") {
  Pair pair = make_pair();
  const Bytes bytes(10);
  CHECK(pair.b->prepare_sleep(true, false));
  pair.b->finish_sleep();
  CHECK_FALSE(pair.b->prepare_sleep(false, true));  // There is room.
  pair.b->finish_sleep();
  pair.a->send_some({}, bytes);
  CHECK_FALSE(pair.b->prepare_sleep(true, false));
  pair.b->finish_sleep();
}

TEST_CASE("a sleeping reader is woken through its descriptor") {
  Pair pair = make_pair();
  REQUIRE(pair.b->prepare_sleep(true, false));
  const Bytes bytes(10);
  pair.a->send_some({}, bytes);
  pollfd entry{pair.b->fd(), pair.b->poll_events(true, false), 0};
  CHECK(::poll(&entry, 1, 10'000) == 1);
  pair.b->finish_sleep();
}

TEST_CASE("the last bytes of a peer that has gone arrive, and then the end") {
  Pair pair = make_pair();
  const Bytes bytes(1000, std::byte{9});
  pair.a->send_some({}, bytes);
  pair.a.reset();
  Bytes got(600);
  CHECK(pair.b->recv_some({}, got).bytes == 600);
  sleep_for(*pair.b, true, false);
  CHECK(pair.b->recv_some({}, got).bytes == 400);
  const Io end = pair.b->recv_some({}, got);
  CHECK(end.bytes == 0);
  CHECK(end.closed);
  CHECK(pair.b->send_some({}, bytes).closed);
}

TEST_CASE("a peer's nonsense in the counters stops its link and writes nowhere else") {
  for (const std::uint64_t nonsense :
       {~std::uint64_t{0}, std::uint64_t{limits::kRingBytes} + 1, std::uint64_t{1} << 63}) {
    Pair pair = make_pair();
    auto* rings = reinterpret_cast<ShmRing*>(pair.memory.data());
    rings[0].written.store(nonsense);  // What b reads by.
    rings[1].read.store(nonsense);     // What b writes by.
    Bytes got(64, std::byte{5});
    const Io in = pair.b->recv_some({}, got);
    CHECK(in.bytes <= got.size());
    const Bytes out(64, std::byte{6});
    const Io sent = pair.b->send_some({}, out);
    CHECK(sent.bytes <= out.size());
    // Whatever b wrote lies inside its ring: the other ring's bytes are untouched.
    for (std::size_t i = 0; i < limits::kRingBytes; i += 4096)
      REQUIRE(rings[0].bytes[i] == std::byte{0});
  }
}

TEST_CASE(
    "a peer that writes nonsense into a counter is gone: its link ends, and nobody spins on it") {
  for (const bool is_reading : {true, false}) {
    Pair pair = make_pair();
    auto* rings = reinterpret_cast<ShmRing*>(pair.memory.data());
    (is_reading ? rings[0].written : rings[1].read).store(std::uint64_t{1} << 40);
    Bytes bytes(64);
    const Io io = is_reading ? pair.b->recv_some({}, bytes) : pair.b->send_some({}, bytes);
    CHECK(io.bytes == 0);
    CHECK(io.closed);
  }
}

TEST_CASE("memory of another size than agreed, or unsealed, is refused") {
  const SharedMemory memory = SharedMemory::create(4096);
  CHECK_THROWS_AS(SharedMemory::attach(Fd(::dup(memory.fd())), ShmLink::kMemoryBytes),
                  ProtocolError);
  const Fd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> unsealable(std::tmpfile(), &std::fclose);
  REQUIRE(unsealable);
  for (const int fd : {unsealed.get(), ::fileno(unsealable.get())}) {
    REQUIRE(::ftruncate(fd, 4096) == 0);
    CHECK_THROWS_AS(SharedMemory::attach(Fd(::dup(fd)), 4096), ProtocolError);
  }
}

}  // namespace
}  // namespace gradring::transport::shm_link_test
