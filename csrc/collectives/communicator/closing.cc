// How a communicator ends: by a failure, and who hears of that when; by close(), and from where.
#include "base/error.h"
#include "collectives/communicator/communicator.h"

namespace gradring::collectives {
namespace {

// It came between two calls.
Failure before(const Call& next, Failure failure) {
  failure.text = str("before ", describe(next), ": ", failure.text);
  return failure;
}

}  // namespace

void Communicator::raise_ended(const Call& next) const {
  const Failure failure = group_->failure();
  if (failure.kind == ErrorKind::kClosed) throw Closed(failure.text);
  // It happened between two calls: the next one raises it, as if it had been in there.
  if (group_->note_told()) logbook_->noted(before(next, failure)).raise();
  throw Closed(str("this communicator is closed since: ", failure.text), failure);
}

void Communicator::check_queued(const Call& next) const {
  if (!group_->is_failed()) [[likely]]
    return;
  failure_of_queued(next).raise();
}

Failure Communicator::failure_of_queued(const Call& next) const {
  Failure failure = group_->failure();
  if (failure.kind == ErrorKind::kClosed) return failure;
  failure = before(next, failure);
  if (!note_) note_ = logbook_->noted(failure).note;
  failure.note = *note_;
  return failure;
}

Failure Communicator::fail(const Call& call, std::uint64_t seq, const std::exception_ptr& error,
                           Millis timeout) {
  const Failure failure = find_cause(*world_, *group_, gradring::describe(call, seq), seq, error,
                                     engine_.waited_for(), timeout);
  group_->fail(failure);
  const Failure noted = logbook_->noted(failure);
  note_ = noted.note;
  return noted;
}

Failure Communicator::failure() const {
  if (!is_here()) return {ErrorKind::kClosed, -1, "this communicator is the parent process's"};
  return group_->failure();
}

void Communicator::close(bool is_lingering) {
  world_->check_process();
  is_leaving_.store(true);
  if (is_lingering) point_to_point_.linger();
  group_->fail({ErrorKind::kClosed, -1, "this communicator is closed: close() was called"});
  if (is_in_call_here())
    closing_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  else
    leave();
}

// A signal handler may interrupt a call that another one made: the outermost ends it.
void Communicator::finish_close() {
  if (closing_.load(std::memory_order_relaxed) != std::this_thread::get_id()) return;
  if (is_in_call_here()) return;
  closing_.store({}, std::memory_order_relaxed);
  leave();
}

// When the group has failed.
void Communicator::leave() {
  std::thread progress;
  {
    const std::lock_guard lock(queue_mutex_);
    is_stopping_ = true;
    queue_filled_.notify_all();
    progress = std::move(progress_);
  }
  recorder_->close(logbook_);
  if (progress.joinable()) progress.join();
  point_to_point_.stop();
  const std::lock_guard drive(
      drive_);  // The operation that was running has seen the failure by now.
  std::deque<std::shared_ptr<Work>> orphans;
  {
    const std::lock_guard lock(queue_mutex_);
    orphans.swap(queue_);
  }
  for (const auto& work : orphans) work->cancel(failure_of_queued(work->call));
  engine_.leave();
  world_->drop_group(group_->id);
  if (std::exchange(has_left_, true)) return;
  recorder_->finish();
  world_->leave();
}

}  // namespace gradring::collectives
