// A stack of its own that a function runs on, entered and left at will: one thread of an emulated
// block. Owned and run by one thread of the operating system.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#define GRADRING_FIBER_UCONTEXT 1
#include <ucontext.h>
#endif

namespace gradring::emulator {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls entry(argument) from its beginning; what ran before is forgotten,
  // without destructors. `entry` must end with leave().
  void start(Entry entry, void* argument);
  // From outside: runs until the fiber pauses or leaves.
  void resume();
  // From inside.
  void pause();
  [[noreturn]] void leave();

 private:
  static void enter();
  void forget(Entry entry, void* argument);  // What start() does anywhere.
  // Between the two stacks, each of which goes on where it was left.
  void swap_in();
  void swap_out();
  // The same, with AddressSanitizer told of it.
  void switch_out(bool is_last);

  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  std::byte* stack_ = nullptr;
#if defined(GRADRING_FIBER_UCONTEXT)
  ucontext_t inside_;
  ucontext_t outside_;
#else
  void* inside_ = nullptr;  // The stack pointers.
  void* outside_ = nullptr;
#endif
  // AddressSanitizer's: stacks of variables, and where the other stack lies.
  void* fake_inside_ = nullptr;
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace gradring::emulator
