// Descriptors over a Unix socket: one arrives as it was sent, and whoever sends anything else
// leaves none of it open here.
#include "transport/links/pass_fd.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "transport/links/connection.h"

namespace gradring::transport::pass_fd_test {
namespace {

constexpr Millis kPlenty{10'000};

struct Pair {
  Fd near;
  Fd far;
};

Pair make_pair() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

// One byte, and so many copies of `fd` with it.
void send_copies(int socket, int fd, std::size_t count) {
  std::byte carrier{1};
  iovec part{&carrier, 1};
  const std::vector<int> copies(count, fd);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (count > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), copies.data(), count * sizeof(int));
  }
  REQUIRE(::sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

TEST_CASE("a descriptor arrives and leads to the same file") {
  const Pair pair = make_pair();
  Pair passed = make_pair();
  send_fd(pair.near.get(), passed.near.get(), Clock::now() + kPlenty);
  Fd got = recv_fd(pair.far.get(), Clock::now() + kPlenty);
  const std::byte sent{42};
  std::byte heard{};
  Connection(std::move(got)).send_all(std::span(&sent, 1), Clock::now() + kPlenty);
  Connection(std::move(passed.far)).recv_all(std::span(&heard, 1), Clock::now() + kPlenty);
  CHECK(heard == sent);
}

TEST_CASE("of a message without a descriptor, or with several, nothing stays open") {
  for (const std::size_t count : {0, 2, 3, 8}) {
    CAPTURE(count);
    const Pair pair = make_pair();
    Pair passed = make_pair();
    send_copies(pair.near.get(), passed.near.get(), count);
    passed.near.reset();
    CHECK_THROWS_AS(recv_fd(pair.far.get(), Clock::now() + kPlenty), ProtocolError);
    CHECK(has_hung_up(passed.far.get()));  // Nobody holds the other end any more.
  }
}

}  // namespace
}  // namespace gradring::transport::pass_fd_test
