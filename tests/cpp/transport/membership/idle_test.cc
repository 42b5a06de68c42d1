// How a thread waits: until something happens, a failure, a signal or its deadline, whichever comes
// first, and never longer.
#include "transport/membership/idle.h"
#include "transport/links/interrupts.h"

#include <doctest/doctest.h>

#include <thread>
#include <utility>

#include "base/error.h"
#include "transport/links/memory_link.h"

namespace gradring::transport::idle_test {
namespace {

constexpr Millis kPlenty{20'000};

struct Waiter {
  Group group{7, {0, 1}};

  // Waits for nothing in particular until `idle` throws.
  static void wait_forever(Idle& idle) {
    while (true) idle.on_links({});
  }
};

TEST_CASE("a wait ends at its deadline, not before") {
  Waiter waiter;
  Idle idle(waiter.group, Millis{30}, false);
  const Time begin = Clock::now();
  CHECK_THROWS_AS(Waiter::wait_forever(idle), DeadlinePassed);
  CHECK(Clock::now() - begin >= Millis{30});
}

TEST_CASE("progress gives a wait its whole time again") {
  Waiter waiter;
  Idle idle(waiter.group, Millis{40}, false);
  const Time begin = Clock::now();
  while (Clock::now() < begin + Millis{100}) {
    REQUIRE_NOTHROW(idle.on_links({}));
    idle.reset();
  }
  CHECK_THROWS_AS(Waiter::wait_forever(idle), DeadlinePassed);
}

TEST_CASE("a call that did not wait is not told of as the one before it that did") {
  Group group(7, {0, 1});
  Call waited;
  waited.op = OpKind::kAllReduce;
  group.begin_call(3);
  group.publish_call(waited, 3);
  CHECK(group.call().call == waited);
  group.end_call();
  CHECK(group.call().call == waited);  // Its last one.
  group.begin_call(4);
  CHECK(group.call().seq == 4);
  CHECK(group.call().call == Call{});
}

TEST_CASE("a failure wakes a sleeper and comes out of its wait") {
  Waiter waiter;
  Idle idle(waiter.group, kPlenty, false);
  std::thread monitor([&] { waiter.group.fail({ErrorKind::kPeerLost, 3, "rank 3 died"}); });
  try {
    Waiter::wait_forever(idle);
  } catch (const PeerLost& lost) {
    CHECK(lost.rank == 3);
    CHECK(std::string(lost.what()) == "rank 3 died");
  }
  monitor.join();
}

TEST_CASE("the first failure wins") {
  Waiter waiter;
  waiter.group.fail({ErrorKind::kPeerLost, 3, "first"});
  waiter.group.fail({ErrorKind::kMismatch, -1, "second"});
  Idle idle(waiter.group, kPlenty, false);
  CHECK_THROWS_AS(idle.check(), PeerLost);
}

TEST_CASE("a wait on a word ends when the word changes, by a wake-up or by looking") {
  Waiter waiter;
  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::thread writer([&] {
    word.store(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake_word(word);
  });
  Idle idle(waiter.group, kPlenty, false);
  while (word.load(std::memory_order_acquire) == 0) idle.on_word(word, 0, sleepers);
  writer.join();
  CHECK(sleepers.load() == 0);
}

TEST_CASE("a wait on a word sees failure and deadline too") {
  Waiter waiter;
  std::atomic<std::uint32_t> word{0};
  std::atomic<std::uint32_t> sleepers{0};
  const auto wait_forever = [&](Idle& idle) {
    while (true) idle.on_word(word, 0, sleepers);
  };
  Idle late(waiter.group, Millis{30}, false);
  CHECK_THROWS_AS(wait_forever(late), DeadlinePassed);
  waiter.group.fail({ErrorKind::kMismatch, -1, "different calls"});
  Idle failed(waiter.group, kPlenty, false);
  CHECK_THROWS_AS(wait_forever(failed), Mismatch);
}

TEST_CASE("a long wait says in the heartbeat what it waits in, and stops saying so") {
  Waiter waiter;
  Call call;
  call.op = OpKind::kAllReduce;
  call.count = 5;
  waiter.group.begin_call(9);
  {
    Idle idle(waiter.group, Millis{30}, false);
    idle.waits_in(call, 9);
    CHECK_FALSE(waiter.group.call().in_progress);
    CHECK_THROWS_AS(Waiter::wait_forever(idle), DeadlinePassed);
    CHECK(waiter.group.call().in_progress);
    CHECK(waiter.group.call().call == call);
    CHECK(waiter.group.call().seq == 9);
  }
  CHECK_FALSE(waiter.group.call().in_progress);
  CHECK(waiter.group.call().seq == 9);
}

TEST_CASE(
    "a core that was lost to a stranger makes waits sleep, one lost to a rank ahead does not") {
  Waiter waiter;
  const auto call = [&](bool waits) {
    Idle idle(waiter.group, kPlenty, false);
    if (waits) idle.on_links({});
  };
  const Time now = Clock::now() + std::chrono::hours(1);  // Waits sleep until then.
  waiter.group.wake();                                    // But not here.
  waiter.group.note_theft(now);
  REQUIRE(waiter.group.sleep_until() > now);
  for (int i = 0; i < 7; ++i) call(false);
  call(true);
  for (int i = 0; i < 7; ++i) call(false);
  CHECK(waiter.group.sleep_until() > now);
  call(false);
  CHECK(waiter.group.sleep_until() == Time{});
}

TEST_CASE("a sleep that was taken back still counts for how long the next one is") {
  Waiter waiter;
  const Time first = Clock::now();
  waiter.group.note_theft(first);
  CHECK(waiter.group.sleep_until() == first + Millis{1});
  for (int i = 0; i < 8; ++i) waiter.group.note_call(false);
  REQUIRE(waiter.group.sleep_until() == Time{});
  const Time second = first + Millis{2};
  waiter.group.note_theft(second);
  CHECK(waiter.group.sleep_until() == second + Millis{2});
}

TEST_CASE("a stranger that comes once in many yields is a passer-by each time") {
  Waiter waiter;
  Time now = Clock::now();
  for (const auto& [yields, slept] : {std::pair{0, 1}, {1, 2}, {255, 4}, {256, 1}, {1, 2}}) {
    for (int i = 0; i < yields; ++i) waiter.group.note_yield();
    waiter.group.note_theft(now);
    CHECK(waiter.group.sleep_until() == now + Millis{slept});
    now += Millis{slept + 1};
  }
}

TEST_CASE("a wait in the caller's own way counts as one") {
  Waiter waiter;
  waiter.group.note_theft(Clock::now());
  for (int i = 0; i < 20; ++i) {
    Idle idle(waiter.group, kPlenty, false);
    idle.note_wait();
  }
  CHECK(waiter.group.sleep_until() != Time{});
}

std::atomic<int> interrupts{0};

TEST_CASE("a user's wait looks for signals, a background wait does not") {
  Waiter waiter;
  interrupts = 0;
  set_interrupt_check([] {
    if (++interrupts == 3) throw Interrupted("Ctrl-C");
  });
  Idle user(waiter.group, kPlenty, true);
  CHECK_THROWS_AS(Waiter::wait_forever(user), Interrupted);
  CHECK(interrupts == 3);
  Idle background(waiter.group, Millis{30}, false);
  CHECK_THROWS_AS(Waiter::wait_forever(background), DeadlinePassed);
  CHECK(interrupts == 3);
  set_interrupt_check(nullptr);
}

TEST_CASE("there is no sleep while a link can be used") {
  Waiter waiter;
  MemoryWeather weather;
  auto wire = std::make_shared<MemoryWire>(weather, MemoryScript{});
  MemoryLink link(wire, 0);
  Idle idle(waiter.group, kPlenty, false);
  const Interest interests[] = {{&link, true, true}, {nullptr, true, false}};
  const Time begin = Clock::now();
  // Past the yields these would be sleeps of 50 ms if the link did not object.
  for (int i = 0; i < 3000; ++i) idle.on_links(interests);
  CHECK(Clock::now() - begin < kPlenty);
}

}  // namespace
}  // namespace gradring::transport::idle_test
