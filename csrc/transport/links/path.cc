#include "transport/links/path.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>

namespace gradring::transport {
namespace {

// What kernels since 4.6 say behind the C library's tcp_info.
struct PathInfo {
  tcp_info known;
  std::array<std::uint64_t, 4> rates_and_bytes;
  std::array<std::uint32_t, 3> segments;
  std::uint32_t min_rtt_us;
};
static_assert(offsetof(PathInfo, min_rtt_us) == 148);  // The kernel's, for ever.

}  // namespace

std::uint32_t path_us(int fd) {
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  PathInfo info{};
  socklen_t length = sizeof info;
  const int failed = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  if (failed != 0 || length < sizeof info || info.min_rtt_us == kNone) return 0;
  return info.min_rtt_us / 2;
}

}  // namespace gradring::transport
