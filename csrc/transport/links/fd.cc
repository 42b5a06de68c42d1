#include "transport/links/fd.h"

#include <fcntl.h>

#include <array>
#include <atomic>

namespace gradring::transport {
namespace {

// Descriptors are small numbers. One beyond the table is only not let go of in a child.
constexpr int kTable = 1 << 16;
std::array<std::atomic<bool>, kTable> is_ours{};  // Relaxed: fork() itself orders it for the child.

}  // namespace

void note_fd(int fd) {
  if (fd < kTable) is_ours[static_cast<std::size_t>(fd)].store(true, std::memory_order_relaxed);
}

void forget_fd(int fd) {
  if (fd < kTable) is_ours[static_cast<std::size_t>(fd)].store(false, std::memory_order_relaxed);
}

void let_go_of_fds() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return;
  for (int fd = 0; fd < kTable; ++fd)
    if (is_ours[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed) && fd != nothing)
      ::dup3(nothing, fd, O_CLOEXEC);
  ::close(nothing);
}

}  // namespace gradring::transport
