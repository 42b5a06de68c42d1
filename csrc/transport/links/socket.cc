#include "transport/links/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "transport/links/interrupts.h"
#include "transport/links/pacing.h"
#include "transport/links/resolve.h"

namespace gradring::transport {
namespace {

void set_option(int fd, int level, int option, int value) {
  // Tuning only: where the kernel refuses, the connection still works.
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// What the kernel gave of a buffer that was asked for; it reports twice as much (socket(7)).
int granted_bytes(int fd, int buffer) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  return ::getsockopt(fd, SOL_SOCKET, buffer, &bytes, &length) == 0 ? bytes / 2 : 0;
}

sockaddr_un unix_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  GRADRING_ASSERT(name.size() + 1 < sizeof address.sun_path);
  std::memcpy(address.sun_path + 1, name.data(),
              name.size());  // A leading zero byte: the abstract name space.
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

HostPort to_host_port(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return {text.data(), ntohs(v4.sin_port)};
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
      ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text.data(), text.size());
    else
      ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return {text.data() + scope_text(v6), ntohs(v6.sin6_port)};
  }
  return {};
}

void check_shortage(const std::string& what, int error) {
  if (is_shortage(error)) throw DeviceError(str(what, ": ", errno_text(error), limit_hint(error)));
}

// 0, EINPROGRESS or why not.
int start_connecting(const addrinfo& entry, Fd& fd) {
  fd = Fd(::socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (leads_to_this_host(entry)) start_unpaced(fd.get());
  if (::connect(fd.get(), entry.ai_addr, entry.ai_addrlen) == 0) return 0;
  return errno == EINTR ? EINPROGRESS : errno;
}

}  // namespace

std::string errno_text(int error) {
  return std::strerror(error);
}

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

HostPort parse_host_port(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw InvalidArgument(str("'", text, "' is not HOST:PORT ([V6]:PORT for IPv6)"));
  HostPort address{text.substr(0, colon), 0};
  if (address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  else if (address.host.find(':') != std::string::npos)
    throw InvalidArgument(str("'", text, "': an IPv6 address needs brackets, [V6]:PORT"));
  const std::string port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535)
    throw InvalidArgument(str("'", text, "': '", port, "' is not a port (0-65535)"));
  address.port = std::stoi(port);
  return address;
}

std::string to_text(const HostPort& address) {
  if (address.host.find(':') != std::string::npos)
    return str('[', address.host, "]:", address.port);
  return str(address.host, ':', address.port);
}

bool is_loopback(const std::string& host) {
  const AddressList list = resolve({host, 0}, 0);
  if (!list) return false;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(*entry->ai_addr);
      if ((ntohl(v4.sin_addr.s_addr) >> 24) != 127) return false;
    } else if (entry->ai_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*entry->ai_addr);
      if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return false;
    }
  }
  return true;
}

Fd listen_tcp(const std::string& host, int port, int backlog) {
  const AddressList list = resolve({host, port}, AI_PASSIVE);
  if (!list) throw InvalidArgument(str("cannot listen on '", host, "': the name does not resolve"));
  std::string why = "no usable address";
  bool is_taken = false;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    Fd fd(::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) check_shortage(str("cannot listen on ", to_text({host, port})), errno);
    if (!fd) continue;
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (entry->ai_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    start_unpaced(fd.get());
    if (::bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::listen(fd.get(), backlog) == 0)
      return fd;
    is_taken = errno == EADDRINUSE;
    why = errno == EADDRNOTAVAIL ? "it is no address of this host" : address_problem(errno, *entry);
  }
  why = str("cannot listen on ", to_text({host, port}), ": ", why);
  if (is_taken) throw AddressTaken(why);
  throw InvalidArgument(why);
}

Fd listen_everywhere(int port, int backlog) {
  try {
    return listen_tcp("::", port, backlog);
  } catch (const InvalidArgument&) {
    return listen_tcp("0.0.0.0", port, backlog);  // Without IPv6. Or it says what is wrong.
  }
}

Fd adopt_listener(int fd) {
  int is_listening = 0;
  socklen_t length = sizeof is_listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &length) != 0 || is_listening == 0)
    throw InvalidArgument(str("GRADRING_LISTEN_FD=", fd, " is not a listening socket"));
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  start_unpaced(fd);
  return Fd(fd);
}

Fd listen_unix(const std::string& name, int backlog) {
  socklen_t length = 0;
  const sockaddr_un address = unix_address(name, length);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) check_shortage("cannot listen on a Unix socket", errno);
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), backlog) != 0)
    throw InternalError(str("cannot listen on a Unix socket: ", errno_text(errno)));
  return fd;
}

HostPort local_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return to_host_port(address);
}

int local_port(int fd) {
  return local_address(fd).port;
}

std::string peer_text(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return "an unknown address";
  if (address.ss_family == AF_UNIX) return "a local process";
  return to_text(to_host_port(address));
}

Fd accept_one(int listener, int* error) {
  while (true) {
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && errno == EINTR) continue;
    if (!fd && error != nullptr) *error = errno;
    if (!fd) return fd;
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    // The listener could not know where it would come from.
    if (!is_within_host(fd.get())) pace_as_system(fd.get());
    return fd;
  }
}

Fd connect_tcp(const HostPort& to, Time deadline, std::string& why) {
  const AddressList list = resolve_by(to, deadline, why);
  if (!list) return {};
  return connect_to_one_of(list.get(), deadline, why);
}

Fd connect_to_one_of(const addrinfo* addresses, Time deadline, std::string& why) {
  std::vector<TriedAddress> tried;
  int left = 0;
  for (const addrinfo* entry = addresses; entry != nullptr; entry = entry->ai_next) ++left;
  for (const addrinfo* entry = addresses; entry != nullptr; entry = entry->ai_next, --left) {
    Fd fd;
    int error = start_connecting(*entry, fd);
    if (error == EINPROGRESS) {
      const Time now = Clock::now();
      if (!wait_writable(fd.get(), now + (deadline - now) / left)) {
        tried.push_back({entry, "no answer"});
        continue;
      }
      error = connect_error(fd.get());
    }
    if (error == 0) return fd;
    tried.push_back({entry, connect_problem(error, *entry)});
  }
  why = why_none_answered(tried);
  return {};
}

Fd begin_connect_tcp(const HostPort& to, int& error) {
  const AddressList list = resolve(to, AI_NUMERICHOST);
  error = EADDRNOTAVAIL;
  Fd fd;
  if (list) error = start_connecting(*list, fd);
  if (error == EINPROGRESS) error = 0;
  return error == 0 ? std::move(fd) : Fd();
}

int connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

bool has_hung_up(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Fd connect_unix(const std::string& name, Time deadline, std::string& why, int* error) {
  socklen_t length = 0;
  const sockaddr_un address = unix_address(name, length);
  const auto fail = [&](int number) {
    why = errno_text(number);
    if (error != nullptr) *error = number;
    return Fd();
  };
  // Blocking: a full backlog waits for the acceptor.
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail(errno);
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      why = "it takes no connection: its queue of them is full";
      return {};
    }
    const timeval time{left.count() / 1'000'000, left.count() % 1'000'000};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) break;
    if (errno == EINTR) {
      run_interrupt_check();
    } else if (errno != EAGAIN) {
      return fail(errno);
    }
  }
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

void tune_data_socket(int fd, int buffer_bytes) {
  // A size that is set stays for good, also the lesser one that the kernel gives instead, and not
  // every kernel takes it back: so another socket asks first.
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto is_granted = [&](int buffer) {
    set_option(probe.get(), SOL_SOCKET, buffer, buffer_bytes);
    return granted_bytes(probe.get(), buffer) >= buffer_bytes;
  };
  if (is_granted(SO_SNDBUF)) set_option(fd, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
  if (is_within_host(fd) && is_granted(SO_RCVBUF)) {
    set_option(fd, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
    // The window of a connection that is there keeps the bound that it got from its first buffer.
    set_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, buffer_bytes);
  }
}

void keep_little_unsent(int fd, int bytes) {
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes);
}

void end_with_silence(int fd, Millis silence) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silence / 4).count();
  const int between = std::max(1, static_cast<int>(seconds));
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, between);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, between);
  // Also of bytes that nobody acknowledges, and instead of a count of probes.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
}

Io send_some(int fd, std::span<const std::byte> head, std::span<const std::byte> body) {
  std::array<iovec, 2> parts{};
  std::size_t used = 0;
  for (const auto part : {head, body})
    if (!part.empty()) parts[used++] = {const_cast<std::byte*>(part.data()), part.size()};
  if (used == 0) return {};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  while (true) {
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return {static_cast<std::size_t>(sent), false};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    return {0,
            true};  // EPIPE, ECONNRESET, ETIMEDOUT, ...: whatever it is, this connection is over.
  }
}

Io recv_some(int fd, std::span<std::byte> head, std::span<std::byte> body,
             std::span<std::byte> behind) {
  std::array<iovec, 3> parts{};
  std::size_t used = 0;
  for (const auto part : {head, body, behind})
    if (!part.empty()) parts[used++] = {part.data(), part.size()};
  if (used == 0) return {};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = used;
  while (true) {
    const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (got > 0) return {static_cast<std::size_t>(got), false};
    if (got == 0) return {0, true};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    return {0, true};
  }
}

bool wait_for(int fd, short events, Time deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now()).count();
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready > 0) return true;
    if (ready == 0 && left <= 0) return false;
    if (ready < 0 && errno != EINTR) throw InternalError(str("poll: ", errno_text(errno)));
    if (ready < 0) run_interrupt_check();
  }
}

bool wait_readable(int fd, Time deadline) {
  return wait_for(fd, POLLIN, deadline);
}
bool wait_writable(int fd, Time deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

std::optional<std::byte> peek(int fd) {
  std::byte first{};
  if (::recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) return std::nullopt;
  return first;
}

}  // namespace gradring::transport
