#include "transport/membership/idle.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "base/config.h"
#include "transport/links/interrupts.h"

namespace gradring::transport {
namespace {

constexpr std::chrono::microseconds kYieldTime{50};
// A rank of ours works for less than this between two looks; a stranger keeps a core for
// milliseconds.
constexpr std::chrono::microseconds kStolenTime{500};
// Nobody will wake us: long enough to leave the core to others, short beside what a GPU does.
constexpr long kLookNanoseconds = 200'000;

}  // namespace

Idle::~Idle() {
  if (is_published_) group_.end_call();
  group_.note_call(has_waited_);
}

void Idle::publish() {
  if (is_published_ || call_ == nullptr) return;
  group_.publish_call(*call_, seq_);
  is_published_ = true;
}

void Idle::record_wait() {
  if (record_ == nullptr) return;
  record_->stamp();
  if (awaited_ >= 0) record_->set_peer(awaited_);
}

void Idle::start_clock() {
  if (deadline_ == Time{}) deadline_ = Clock::now() + timeout_;
}

// True while it is too early to sleep. Bounded by time, since a round of looking costs system calls
// on TCP, and by count.
bool Idle::yield() {
  has_waited_ = true;
  if (yields_ < group_.looks_before_yield) {
    ++yields_;
    return true;
  }
  const Time before = Clock::now();
  if (before < group_.sleep_until()) return false;
  if (yields_ == group_.looks_before_yield) yield_until_ = before + kYieldTime;
  ++yields_;
  if (yields_ > limits::kYieldsBeforeSleep || before > yield_until_) return false;
  group_.note_yield();
  ::sched_yield();
  // Whoever got the core was no rank of ours: for a while a sleep is better, since the wake-up from
  // it takes the core back at once.
  const Time after = Clock::now();
  if (after - before > kStolenTime) group_.note_theft(after);
  return true;
}

void Idle::check() {
  record_wait();
  if (group_.is_failed()) group_.failure().raise();
  start_clock();
  if (Clock::now() >= deadline_) throw DeadlinePassed{};
}

Millis Idle::slice() const {
  const auto left = std::chrono::duration_cast<Millis>(deadline_ - Clock::now()) + Millis{1};
  return std::clamp(left, Millis{0}, limits::kSleepSlice);
}

void Idle::on_links(std::span<const Interest> interests) {
  start_clock();
  if (yield()) {
    if (group_.is_failed()) check();
    return;
  }
  check();
  publish();
  std::vector<pollfd> polls{{group_.wake_fd(), POLLIN, 0}};
  bool may_sleep = true;
  for (const Interest& interest : interests) {
    if (interest.link == nullptr) continue;
    if (!interest.link->prepare_sleep(interest.wants_recv, interest.wants_send)) may_sleep = false;
    polls.push_back({interest.link->fd(),
                     interest.link->poll_events(interest.wants_recv, interest.wants_send), 0});
  }
  if (may_sleep) ::poll(polls.data(), polls.size(), static_cast<int>(slice().count()));
  for (const Interest& interest : interests)
    if (interest.link != nullptr) interest.link->finish_sleep();
  group_.clear_wake();
  if (interruptible_) run_interrupt_check();
}

void Idle::on_clock() {
  start_clock();
  if (yield()) {
    if (group_.is_failed()) check();
    return;
  }
  check();
  publish();
  pollfd entry{group_.wake_fd(), POLLIN, 0};
  const timespec time{0, kLookNanoseconds};
  ::ppoll(&entry, 1, &time, nullptr);
  group_.clear_wake();
  if (interruptible_) run_interrupt_check();
}

void Idle::on_word(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                   std::atomic<std::uint32_t>& sleepers) {
  if (yield()) {
    if (group_.is_failed()) check();
    return;
  }
  check();
  publish();
  sleepers.fetch_add(
      1, std::memory_order_seq_cst);  // Pairs with the writer's load after its store to `word`.
  if (word.load(std::memory_order_seq_cst) == seen) {
    const auto time = slice();
    const timespec timeout{time.count() / 1000, (time.count() % 1000) * 1000000};
    // Between processes, so not FUTEX_PRIVATE. Any return means: look again.
    ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &timeout,
              nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (interruptible_) run_interrupt_check();
}

void wake_word(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace gradring::transport
