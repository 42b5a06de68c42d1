#include "transport/links/pass_fd.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

// All that came, whether it was asked for or not: the kernel has opened every one of them here.
std::vector<Fd> passed_with(msghdr& message) {
  std::vector<Fd> passed;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      passed.emplace_back(fd);
    }
  }
  return passed;
}

}  // namespace

void send_fd(int socket, int fd, Time deadline) {
  std::byte carrier{1};
  iovec part{&carrier, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  while (::sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw ProtocolError(str("passing a descriptor: ", errno_text(errno)));
    if (!wait_writable(socket, deadline)) throw TimedOut("passing a descriptor: no answer");
  }
}

Fd recv_fd(int socket, Time deadline) {
  std::byte carrier{};
  iovec part{&carrier, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  while (true) {
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got == 1) break;
    if (got == 0) throw ProtocolError("the other process closed the connection");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw ProtocolError(str("receiving a descriptor: ", errno_text(errno)));
    if (!wait_readable(socket, deadline)) throw TimedOut("receiving a descriptor: no answer");
  }
  std::vector<Fd> passed = passed_with(message);
  if (passed.empty() && (message.msg_flags & MSG_CTRUNC) != 0)
    throw DeviceError("this process can take no descriptor that is passed to it; see ulimit -n");
  if (passed.size() != 1 || (message.msg_flags & MSG_CTRUNC) != 0)
    throw ProtocolError("a message that should carry one descriptor does not");
  return std::move(passed.front());
}

}  // namespace gradring::transport
