#include "collectives/communicator/work.h"

namespace gradring::collectives {

void Work::run() {
  Failure failure;
  try {
    carry_out_();
  } catch (const std::exception& error) {
    failure = Failure::from(error);
  }
  finish(failure);
}

void Work::cancel(const Failure& failure) {
  finish(failure);
}

void Work::finish(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return;
  failure_ = failure;
  is_done_ = true;
  carry_out_ = nullptr;
  done_.notify_all();
}

bool Work::is_done() const {
  const std::lock_guard lock(mutex_);
  return is_done_;
}

Failure Work::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Work::raise_if_failed() const {
  const Failure failed = failure();
  if (!failed) return;
  // What was refused has failed nothing else.
  if (failed.kind != ErrorKind::kInvalidArgument && group_->is_failed()) group_->note_told();
  failed.raise();
}

bool Work::wait_for(Millis time) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, time, [&] { return is_done_; });
}

}  // namespace gradring::collectives
