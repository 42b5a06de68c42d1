// Whether a thread has its core for itself is seen in how long its yields take.
#include "ps/protocol/pause.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

namespace gradring::ps::pause_test {
namespace {

constexpr Millis kPlenty{20'000};

void bind_to(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
}

// Waits again and again, until it is so or for long. Whether it is.
bool becomes(Pause& pause, bool is_crowded) {
  const Time deadline = Clock::now() + kPlenty;
  while (pause.is_crowded() != is_crowded && Clock::now() < deadline) {
    while (pause.look_again()) {
    }
    pause.reset();
  }
  return pause.is_crowded() == is_crowded;
}

TEST_CASE("who shares its core stops to look before it yields, until it is alone") {
  // In a thread of its own: it is bound for good.
  std::thread([] {
    const int processor = ::sched_getcpu();
    bind_to(processor);
    std::atomic<bool> ends = false;
    std::thread neighbour([&] {
      bind_to(processor);
      while (!ends.load()) {
      }
    });
    Pause pause;
    CHECK(becomes(pause, true));
    ends = true;
    neighbour.join();
    CHECK(becomes(pause, false));
  }).join();
}

TEST_CASE("a wait ends in sleep, and the next one begins anew") {
  Pause pause;
  for (int wait = 0; wait < 3; ++wait) {
    const Time began = Clock::now();
    while (pause.look_again()) {
      REQUIRE(Clock::now() - began < kPlenty);
    }
    pause.reset();
  }
}

}  // namespace
}  // namespace gradring::ps::pause_test
