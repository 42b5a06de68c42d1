#include "transport/forks.h"

#include <pthread.h>

#include <atomic>

#include "base/error.h"
#include "transport/fd.h"

namespace gradring::transport {
namespace {

std::atomic<std::uint64_t> forks{0};  // Written in the only thread of a fresh child.

}  // namespace

std::uint64_t fork_generation() {
  return forks.load(std::memory_order_relaxed);
}

std::uint64_t watch_forks() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    forks.fetch_add(1);
    let_go_of_fds();
  });
  GRADRING_ASSERT(registered == 0);
  return fork_generation();
}

}  // namespace gradring::transport
