// Scribe: one lazily started thread a rank for what must hold up neither the monitor nor a user's
// call: writing records into files, and answering those who ask for one. Jobs run one after the
// other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace gradring::transport {

class Scribe {
 public:
  Scribe() = default;
  ~Scribe() { stop(); }
  Scribe(const Scribe&) = delete;
  Scribe& operator=(const Scribe&) = delete;

  // Callable from any thread. A job never throws. Nothing is taken after stop(),
  // nor where hundreds wait already.
  void post(std::function<void()> job);
  // Now and then again after each `pause`, until stop(). Once a scribe.
  void repeat(Millis pause, std::function<void()> job);
  void stop();  // Does what was posted before, then ends the thread.

 private:
  void run();

  std::mutex mutex_;  // Guards the rest.
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_stopping_ = false;
  std::function<void()> repeated_;
  Millis pause_{0};
  Time next_{};  // Of repeated_.
  std::thread thread_;
};

}  // namespace gradring::transport
