// Queue: an emulated stream: pieces of work, carried out one after the other by a thread of its
// own, each after a seeded delay. Marker: a place in a queue that others can wait for: what an
// event stands for once it has been recorded. Used by the emulated runtime; callable from any
// thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "base/clock.h"

namespace gradring::emulated {

class Marker {
 public:
  void pass();
  bool is_passed() const;
  void wait() const;
  Time time() const;  // When it was passed.

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable passed_;
  bool is_passed_ = false;
  Time time_{};
};

// As many pieces of work as a real stream has room for: who brings more has to wait.
inline constexpr std::size_t kStreamRoom = 1024;

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue(int device, std::uint64_t seed, std::chrono::microseconds longest_delay);

  int device() const { return device_; }
  // Where it is full, after what is in it has gone on. False: that took too long, or it is
  // captured.
  bool push(std::function<void()> body);
  void set_captured(bool is_captured);
  bool is_captured() const;
  bool is_idle() const;
  void wait_until_idle() const;  // For all that was pushed before the call.
  // No more comes: the thread ends when the rest is done. Does not wait for it.
  void close();

  static std::uint64_t pending();  // On all queues.
  static std::uint64_t done();

 private:
  void run();

  const int device_;
  const std::chrono::microseconds longest_delay_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t pushed_ = 0;
  std::uint64_t finished_ = 0;
  bool is_closed_ = false;
  bool is_captured_ = false;
  bool has_thread_ = false;
  std::mt19937_64 random_;  // Used by the thread alone.
};

}  // namespace gradring::emulated
