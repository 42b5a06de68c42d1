#include "transport/links/interrupts.h"

#include <atomic>

namespace gradring::transport {
namespace {

std::atomic<void (*)()> interrupt_check{nullptr};  // Set once at import, before any wait.

}  // namespace

void set_interrupt_check(void (*check)()) {
  interrupt_check.store(check);
}

void run_interrupt_check() {
  if (auto* check = interrupt_check.load()) check();
}

}  // namespace gradring::transport
