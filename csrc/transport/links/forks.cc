#include "transport/links/forks.h"

#include <pthread.h>

#include <atomic>

#include "base/error.h"
#include "transport/links/fd.h"

namespace gradring::transport {
namespace {

std::atomic<std::uint64_t> forks{0};  // Written in the only thread of a fresh child.
std::atomic<void (*)(const std::function<void()>&)> deletion_runner{nullptr};

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

void set_deletion(void (*run)(const std::function<void()>& deletion)) {
  deletion_runner.store(run);
}

void run_deletion(const std::function<void()>& deletion) {
  if (const auto run = deletion_runner.load(); run != nullptr)
    run(deletion);
  else
    deletion();
}

}  // namespace gradring::transport
