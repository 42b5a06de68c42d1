#include "emulator/queue.h"

#include <atomic>
#include <thread>

namespace gradring::emulated {
namespace {

std::atomic<std::uint64_t> all_pushed{0};
std::atomic<std::uint64_t> all_done{0};

// Whoever waits longer for room in a stream waits for ever: a test is to say so, and to end.
constexpr std::chrono::seconds kLongestWait{10};

}  // namespace

void Marker::pass() {
  const std::lock_guard lock(mutex_);
  is_passed_ = true;
  time_ = Clock::now();
  passed_.notify_all();
}

bool Marker::is_passed() const {
  const std::lock_guard lock(mutex_);
  return is_passed_;
}

void Marker::wait() const {
  std::unique_lock lock(mutex_);
  passed_.wait(lock, [&] { return is_passed_; });
}

Time Marker::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

Queue::Queue(int device, std::uint64_t seed, std::chrono::microseconds longest_delay)
    : device_(device), longest_delay_(longest_delay), random_(seed) {}

bool Queue::push(std::function<void()> body) {
  std::unique_lock lock(mutex_);
  if (is_captured_ ||
      !changed_.wait_for(lock, kLongestWait, [&] { return waiting_.size() < kStreamRoom; }))
    return false;
  waiting_.push_back(std::move(body));
  ++pushed_;
  ++all_pushed;
  if (!has_thread_) {
    has_thread_ = true;
    // It lives as long as there is work, whatever becomes of the stream's owner, and of us.
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
  return true;
}

void Queue::set_captured(bool is_captured) {
  const std::lock_guard lock(mutex_);
  is_captured_ = is_captured;
}

bool Queue::is_captured() const {
  const std::lock_guard lock(mutex_);
  return is_captured_;
}

bool Queue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return finished_ == pushed_;
}

void Queue::wait_until_idle() const {
  std::unique_lock lock(mutex_);
  const std::uint64_t before = pushed_;
  changed_.wait(lock, [&] { return finished_ >= before; });
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

void Queue::run() {
  while (true) {
    std::function<void()> body;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      body = std::move(waiting_.front());
      waiting_.pop_front();
    }
    // Mostly at once, sometimes late: both orders of two streams come about.
    const auto longest = static_cast<std::uint64_t>(longest_delay_.count());
    if (longest > 0 && random_() % 4 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds{random_() % (longest + 1)});
    body();
    body = nullptr;
    const std::lock_guard lock(mutex_);
    ++finished_;
    ++all_done;
    changed_.notify_all();
  }
}

std::uint64_t Queue::pending() {
  return all_pushed.load() - all_done.load();
}

std::uint64_t Queue::done() {
  return all_done.load();
}

}  // namespace gradring::emulated
