#include "emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace gradring::emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 * 1024;
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif

// A page at the stack's end, so that who needs more dies there and writes over nothing: of the
// kernel's own size, which is as much as this whole stack where pages have 64 KiB.
std::size_t guard_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

thread_local Fiber* current = nullptr;

}  // namespace

Fiber::Fiber() {
  const std::size_t guard = guard_bytes();
  void* memory = ::mmap(nullptr, guard + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (::mprotect(memory, guard, PROT_NONE) != 0) {
    ::munmap(memory, guard + kStackBytes);
    throw std::bad_alloc();
  }
  stack_ = static_cast<std::byte*>(memory) + guard;
}

Fiber::~Fiber() {
  ::munmap(stack_ - guard_bytes(), guard_bytes() + kStackBytes);
}

void Fiber::enter() {
  Fiber* self = current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_bottom_, &self->outside_bytes_);
#endif
  self->entry_(self->argument_);
  std::abort();
}

#if defined(GRADRING_FIBER_UCONTEXT)

void Fiber::start(Entry entry, void* argument) {
  forget(entry, argument);
  getcontext(&inside_);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  makecontext(&inside_, &Fiber::enter, 0);
}

void Fiber::swap_in() {
  swapcontext(&outside_, &inside_);
}

void Fiber::swap_out() {
  swapcontext(&inside_, &outside_);
}

#else

// Saves what a function may not change, and goes on where `to` was saved. swapcontext() does more:
// a system call, and under AddressSanitizer it clears the shadow of the whole stack at each switch.
extern "C" void gradring_switch_stack(void** from, void* to);
asm(R"(
  .text
  .local gradring_switch_stack
  .type gradring_switch_stack, @function
gradring_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size gradring_switch_stack, .-gradring_switch_stack
)");

void Fiber::start(Entry entry, void* argument) {
  forget(entry, argument);
  // Six registers and the address to return to; a function expects its stack 8 off 16 bytes.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + kStackBytes - 32);
  top[0] = reinterpret_cast<std::uintptr_t>(&Fiber::enter);
  for (int i = 1; i <= 6; ++i) top[-i] = 0;
  inside_ = top - 6;
}

void Fiber::swap_in() {
  gradring_switch_stack(&outside_, inside_);
}

void Fiber::swap_out() {
  gradring_switch_stack(&inside_, outside_);
}

#endif

void Fiber::forget(Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  fake_inside_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
}

void Fiber::resume() {
  current = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_outside_, stack_, kStackBytes);
#endif
  swap_in();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_outside_, nullptr, nullptr);
#endif
}

void Fiber::switch_out([[maybe_unused]] bool is_last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_last ? nullptr : &fake_inside_, outside_bottom_,
                                 outside_bytes_);
#endif
  swap_out();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_inside_, &outside_bottom_, &outside_bytes_);
#endif
}

void Fiber::pause() {
  switch_out(false);
}

void Fiber::leave() {
  switch_out(true);
  std::abort();
}

}  // namespace gradring::emulator
