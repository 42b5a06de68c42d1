// Work: an asynchronous operation in flight. Shared by the communicator's queue and whoever waits;
// every field is guarded by the work's own lock. The caller keeps the operation's memory alive
// until it is done.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/call.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/ticks.h"
#include "transport/membership/group.h"

namespace gradring::collectives {

class Work {
 public:
  // `carry_out` runs the operation to its end on the calling thread; it throws what went wrong.
  Work(std::shared_ptr<transport::Group> group, std::function<void()> carry_out,
       const Call& submitted, Ticks when)
      : call(submitted), queued(when), group_(std::move(group)), carry_out_(std::move(carry_out)) {}

  const Call call;
  const Ticks queued;

  void run();  // Once, by the thread that took it from the queue. Never throws.
  void cancel(const Failure& failure);  // Instead of run().
  bool is_done() const;
  Failure failure() const;       // When done: none if it went well.
  void raise_if_failed() const;  // When done. To the user, who knows it from then on.
  bool wait_for(Millis time);    // True when done.

 private:
  void finish(const Failure& failure);

  std::shared_ptr<transport::Group> group_;
  std::function<void()> carry_out_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  Failure failure_;
};

}  // namespace gradring::collectives
