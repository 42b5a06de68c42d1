// Sockets as the transports need them: errno becomes an error text or a plain result here and goes
// no further. All descriptors are close-on-exec and non-blocking.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "transport/links/fd.h"

struct addrinfo;

namespace gradring::transport {

// What a non-blocking transfer did. `closed`: the other end is gone; bytes that came before were
// delivered first.
struct Io {
  std::size_t bytes = 0;
  bool closed = false;
};

// "host:port", "[v6]:port" -> its two halves. Throws InvalidArgument.
struct HostPort {
  std::string host;
  int port = 0;
};
HostPort parse_host_port(const std::string& text);
std::string to_text(const HostPort& address);
bool is_loopback(const std::string& host);  // Resolves to 127.0.0.0/8 or ::1 only.

// Somebody else listens there.
struct AddressTaken : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

// Port 0: any. Throws InvalidArgument with the reason.
Fd listen_tcp(const std::string& host, int port, int backlog);
Fd listen_everywhere(int port, int backlog);  // On all addresses of this host.
Fd adopt_listener(int fd);                    // An inherited listening socket; takes ownership.
Fd listen_unix(const std::string& name, int backlog);  // Abstract name.
int local_port(int fd);
HostPort local_address(int fd);
std::string peer_text(int fd);  // "10.0.0.3:41822" or "a local process"; never throws.

// Accepts one connection, or returns an empty Fd if none is waiting or none can be had; `error` is
// why, for who asks. Sets NODELAY on TCP.
Fd accept_one(int listener, int* error = nullptr);

// Connects, waiting until `deadline`. An empty Fd means "nobody listens there (yet)"; `why` says
// what happened. Of a name's addresses, each has its share of what is left: the first may lead
// nowhere, as an IPv6 address does behind many a firewall.
Fd connect_tcp(const HostPort& to, Time deadline, std::string& why);
Fd connect_to_one_of(const addrinfo* addresses, Time deadline, std::string& why);
Fd connect_unix(const std::string& name, Time deadline, std::string& why, int* error = nullptr);
// The same without waiting, to a numeric address: the connection is there, or has failed, when the
// socket is writable; connect_error then says which (0: it is there).
Fd begin_connect_tcp(const HostPort& to, int& error);
int connect_error(int fd);
std::string errno_text(int error);
// Whether it says that this process or machine has no descriptors or memory left.
bool is_shortage(int error);
// Whether the other end has closed its half, also behind bytes that are still to be read.
bool has_hung_up(int fd);

// Data connections: large buffers, unless the kernel grants them in part only; and between hosts
// the receiver's are the kernel's, which follow the path
// (docs/decisions/0020-buffers-follow-the-path.md). Congestion control is chosen before, and for
// all connections: pacing.h.
void tune_data_socket(int fd, int buffer_bytes = limits::kSocketBufferBytes);
// A send takes no more once so much has not left yet: for connections that share one stream of
// bytes, which would wait for what a slow one of them has taken.
void keep_little_unsent(int fd, int bytes);
// The connection ends when its peer's host has not been heard of for so long: a host that dies says
// nothing, and who only waits for it would wait for ever.
void end_with_silence(int fd, Millis silence);

// Non-blocking, EINTR retried. Two parts so that a header and its payload leave in one system call.
Io send_some(int fd, std::span<const std::byte> head, std::span<const std::byte> body);
Io recv_some(int fd, std::span<std::byte> head, std::span<std::byte> body,
             std::span<std::byte> behind = {});

// The first byte that has come, which stays where it is; nothing if none has, or none will.
std::optional<std::byte> peek(int fd);

// Wait for what poll() calls `events` of one descriptor. False when the deadline passed.
bool wait_for(int fd, short events, Time deadline);
bool wait_readable(int fd, Time deadline);
bool wait_writable(int fd, Time deadline);

}  // namespace gradring::transport
