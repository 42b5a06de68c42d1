// How callers wait for their calls, and what becomes of those that they wait for no longer.
#include <algorithm>
#include <new>

#include "base/config.h"
#include "ps/client/client.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"

namespace gradring::ps {
namespace {

constexpr Millis kSeatTime{5};
constexpr std::size_t kFailuresKept = 64;

// How many calls this thread waits for. More than one: a signal handler's is inside of the one
// before, which goes on only after it.
thread_local int waits_here = 0;

class Waiting {
 public:
  Waiting() { ++waits_here; }
  ~Waiting() { --waits_here; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
};

}  // namespace

void Client::wait_done(const std::shared_ptr<Call>& call) {
  const Waiting waiting;
  try {
    while (!call->is_done()) {
      std::unique_lock seat(seat_, std::try_to_lock);
      if (seat.owns_lock()) {
        drive_until(*call, seat);
        if (!seat.owns_lock()) continue;
        seat.unlock();
        const std::lock_guard lock(mutex_);
        changed_.notify_all();  // The seat is free.
        continue;
      }
      {
        std::unique_lock lock(mutex_);
        if (!call->is_done()) changed_.wait_for(lock, kSeatTime);
      }
      transport::run_interrupt_check();
    }
  } catch (...) {
    interrupt(call);
    throw;
  }
}

// The caller's memory is the caller's again only when the core has let go of it.
void Client::interrupt(const std::shared_ptr<Call>& call) {
  post([this, call](Time) {
    core_.cancel(*call, {ErrorKind::kInterrupted, -1, str(call->what(), " was interrupted")});
  });
  while (!call->is_done()) {
    if (std::unique_lock seat(seat_, std::try_to_lock); seat.owns_lock())
      take_posted();
    else
      std::this_thread::yield();
  }
}

void Client::abandon(const std::shared_ptr<Call>& call) {
  if (transport::fork_generation() != fork_generation_) return;
  if (!call->is_done()) interrupt(call);
  forget(call);
}

// Somebody has waited for it.
void Client::forget(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  started_bytes_ -= std::erase(background_, call) * room_of(*call);
  std::erase(failed_, call);
}

// What is done makes room; its failure is for who flushes. Under mutex_.
void Client::take_done() {
  const auto is_over = [this](const auto& call) {
    if (!call->is_done()) return false;
    const bool is_told = call->failure() && !call->is_hint();
    if (is_told && failed_.size() < kFailuresKept) failed_.push_back(call);
    if (is_told && call->failure().kind == ErrorKind::kTimedOut) {
      ++timed_out_;
      timed_out_after_ = call->state().timeout;
    }
    started_bytes_ -= room_of(*call);
    return true;
  };
  std::erase_if(background_, is_over);
}

// None for what waits at a gate: that may open by what this worker does next.
std::uint64_t Client::room_of(const Call& call) {
  return call.array_bytes() > 0 && !call.may_wait() ? call.array_bytes() : 0;
}

// Under mutex_.
bool Client::has_room_for(const Call& call) const {
  if (background_.size() >= limits::kQueuedWorks) return false;
  const std::uint64_t bytes = room_of(call);
  return bytes == 0 || started_bytes_ == 0 || started_bytes_ + bytes <= options_.started_bytes;
}

// After a while without room the first call that takes some; null: there is room.
std::shared_ptr<Call> Client::find_in_the_way_of(const Call& call) {
  std::unique_lock lock(mutex_);
  const bool has_room = changed_.wait_for(lock, limits::kSleepSlice, [&] {
    if (has_room_for(call)) return true;
    take_done();
    return has_room_for(call);
  });
  if (has_room) return nullptr;
  const auto found = std::find_if(background_.begin(), background_.end(),
                                  [](const auto& other) { return room_of(*other) > 0; });
  return found == background_.end() ? background_.front() : *found;
}

void Client::wait_for_room(const Call& call, Millis timeout) {
  const Waiting waiting;
  std::uint64_t timed_out_before = 0;
  {
    const std::lock_guard lock(mutex_);
    if (has_room_for(call)) return;
    take_done();
    timed_out_before = timed_out_;
  }
  Time deadline = Clock::now() + timeout;
  while (const std::shared_ptr<Call> first = find_in_the_way_of(call)) {
    check_usable();
    transport::run_interrupt_check();
    if (Clock::now() < deadline) continue;
    const Standing standing = standing_of(first);
    if (!standing.is_known) continue;
    deadline = std::max(deadline, standing.progress_at + timeout);
    if (Clock::now() < deadline) continue;
    const std::lock_guard lock(mutex_);
    throw TimedOut(
        str(call.what(), ": there is no room for its ", call.array_bytes(),
            " bytes of arrays beside asynchronous calls that are under way (", background_.size(),
            ", with ", started_bytes_, " bytes), and there was no progress for ", timeout.count(),
            " ms; nothing of it was sent. The first of them: ", first->what(), standing.missing));
  }
  // What is as patient as this one and was given up meanwhile has made the room: who only starts
  // calls would never hear that servers are gone.
  const std::lock_guard lock(mutex_);
  if (timed_out_ == timed_out_before || timed_out_after_ < timeout) return;
  throw TimedOut(str(call.what(), ": there was no room for its ", call.array_bytes(),
                     " bytes of arrays until asynchronous calls that were under way had timed "
                     "out; nothing of it was sent. ",
                     failed_.empty() ? "" : failed_.front()->failure().text));
}

void Client::wait(const std::shared_ptr<Call>& call, Millis timeout) {
  const Waiting waiting;
  Time deadline = Clock::now() + timeout;
  while (!call->is_done()) {
    check_usable();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limits::kSleepSlice, [&] { return call->is_done(); });
    lock.unlock();
    if (call->is_done()) break;
    transport::run_interrupt_check();
    if (Clock::now() < deadline) continue;
    const Standing standing = standing_of(call);
    if (!standing.is_known) continue;
    deadline = std::max(deadline, standing.progress_at + timeout);
    if (Clock::now() >= deadline)
      throw TimedOut(str(call->what(), " is still under way, without progress for ",
                         timeout.count(), " ms", standing.missing));
  }
  if (!call->failure()) return;
  forget(call);
  call->failure().raise();
}

// Asks the driver, whoever that is: the background thread if nobody else. Not known: it is done, or
// the client is closed meanwhile.
Client::Standing Client::standing_of(const std::shared_ptr<Call>& call) {
  const auto standing = std::make_shared<Standing>();
  post([this, call, standing](Time) {
    if (call->is_done()) return;
    const std::lock_guard lock(mutex_);
    standing->progress_at = core_.progress_of(*call);
    standing->is_known = true;
    try {
      standing->missing = core_.describe_missing(*call);
    } catch (const std::bad_alloc&) {
      // How long it has waited is said all the same.
    }
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  while (!standing->is_known && !call->is_done() && !is_closed())
    changed_.wait_for(lock, limits::kSleepSlice);
  return *standing;
}

void Client::flush(Millis timeout) {
  check_usable();
  std::vector<std::shared_ptr<Call>> pending;
  {
    const std::lock_guard lock(mutex_);
    pending = background_;
  }
  // Others may let a gate open only once this thread goes on: a handler does not wait for that.
  const bool is_inside = waits_here > 0;
  std::erase_if(pending, [&](const auto& call) {
    return call->is_hint() || (is_inside && call->may_wait());
  });
  for (const auto& call : pending) wait(call, timeout);
  const std::lock_guard lock(mutex_);
  if (failed_.empty()) return;
  const std::shared_ptr<Call> failed = failed_.front();
  failed_.clear();
  failed->failure().raise();
}

}  // namespace gradring::ps
