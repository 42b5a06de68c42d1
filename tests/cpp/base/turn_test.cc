// A turn goes to those who wait for it.
#include "base/turn.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "base/text.h"

namespace gradring::turn_test {
namespace {

bool is_asleep(pid_t thread) {
  std::ifstream file(str("/proc/self/task/", thread, "/stat"));
  std::string text;
  std::getline(file, text);
  return text.find(") S ") != std::string::npos;
}

TEST_CASE("who sleeps until a turn is free gets one that is lent, though nobody wakes him") {
  Turn turn;
  std::atomic<pid_t> waiter{0};
  std::atomic<bool> has_had_it{false};
  turn.lock();
  std::thread other([&] {
    waiter = ::gettid();
    turn.lock();
    has_had_it = true;
    turn.unlock();
  });
  while (waiter == 0 || !is_asleep(waiter)) std::this_thread::yield();
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const bool is_back = turn.lend([&] {
    while (!has_had_it && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
  });
  CHECK(has_had_it);
  if (is_back) turn.unlock();
  other.join();
}

}  // namespace
}  // namespace gradring::turn_test
