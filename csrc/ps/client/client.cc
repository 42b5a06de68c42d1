#include "ps/client/client.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/config.h"
#include "base/log.h"
#include "base/threads.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"

namespace gradring::ps {
namespace {

constexpr Millis kTickTime{10};
constexpr Millis kIdleTime{250};   // Between two looks after connections that nobody uses,
constexpr Millis kRepairTime{20};  // while one of them is to be made anew.
constexpr const char* kIsClosed = "this connection to the parameter server is closed";

std::string no_memory_for(const Call& call) {
  try {
    return str(call.what(), ": there is no memory to begin it; nothing was sent");
  } catch (const std::bad_alloc&) {
    return "no memory";
  }
}

}  // namespace

Client::Client(const ClientOptions& options)
    : Client(options, find_shards(options.servers, options.credentials, options.timeout)) {}

Client::Client(const ClientOptions& options, FoundShards found)
    : options_(options),
      fork_generation_(transport::watch_forks()),
      addresses_(std::move(found.addresses)),
      core_({{options.client, found.incarnation}, addresses_, options.answer_time}),
      connections_(addresses_.size()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      dialer_(addresses_, options.credentials, options.mode, wake_.get()) {
  thread_ = start_thread("client", [this] { run_background(); });
}

Client::~Client() {
  close();
}

void Client::check_usable() const {
  if (transport::fork_generation() != fork_generation_)
    throw Closed(
        "this connection to the parameter server belongs to the parent process: a forked child "
        "cannot use it. Connect in the child, or start workers with the 'spawn' method");
  if (is_closed()) throw Closed(kIsClosed);
}

void Client::run(const std::shared_ptr<Call>& call, Millis timeout) {
  check_usable();
  // Alone, the call goes straight in.
  if (std::unique_lock seat(seat_, std::try_to_lock); seat.owns_lock()) {
    take_posted();
    // After what was posted: the end that close() has posted may have been among it. And close()
    // comes here last: what it finds here it ends.
    check_usable();
    core_.submit(call, timeout, Clock::now());
  } else {
    submit_later(call, timeout, [] {});
  }
  wait_done(call);
  if (call->failure()) call->failure().raise();
}

void Client::start(const std::shared_ptr<Call>& call, Millis timeout) {
  check_usable();
  // What is only a hint is not worth waiting for.
  if (!call->goes_along()) wait_for_room(*call, call->is_hint() ? Millis{0} : timeout);
  submit_later(call, timeout, [&] {
    background_.push_back(call);
    started_bytes_ += room_of(*call);
    has_work_.notify_one();
  });
}

// Posts the call for whoever has the seat. `prepare` runs under mutex_, where it is certain that
// close() will find both: it ends what was posted before it began to stop.
template <typename Prepare>
void Client::submit_later(const std::shared_ptr<Call>& call, Millis timeout,
                          const Prepare& prepare) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) throw Closed(kIsClosed);
    put_posted([this, call, timeout](Time now) { submit_or_refuse(call, timeout, now); });
    try {
      prepare();
    } catch (...) {
      posted_.pop_back();
      throw;
    }
  }
  wake();
}

// For somebody else, who would never hear of what is thrown here; nor would those who posted next.
void Client::submit_or_refuse(const std::shared_ptr<Call>& call, Millis timeout, Time now) {
  try {
    core_.submit(call, timeout, now);
  } catch (const std::bad_alloc&) {
    core_.refuse(*call, {ErrorKind::kInvalidArgument, -1, no_memory_for(*call)});
  }
}

void Client::post(std::function<void(Time)> task) {
  {
    const std::lock_guard lock(mutex_);
    put_posted(std::move(task));
  }
  wake();
}

void Client::forget_residuals(const std::shared_ptr<RemoteTable>& table) {
  post([table](Time) { table->residuals.clear(); });
}

// Under mutex_.
void Client::put_posted(std::function<void(Time)> task) {
  posted_.push_back(std::move(task));
  has_posted_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Client::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// Under the seat.
void Client::take_posted() {
  if (!has_posted_.load(std::memory_order_acquire)) return;
  std::vector<std::function<void(Time)>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
    has_posted_.store(false, std::memory_order_release);
  }
  const Time now = Clock::now();
  for (const auto& task : posted) task(now);
}

// Until the call is done, or the seat is somebody else's.
void Client::drive_until(const Call& call, std::unique_lock<Turn>& seat) {
  Time checked = Clock::now();
  while (!call.is_done()) {
    const bool moved = drive_once();
    if (moved) pause_.reset();
    const bool sleeps = !moved && !call.is_done() && !pause_.look_again();
    if (sleeps) sleep(Clock::now());
    // Also in a call that moves bytes for minutes.
    if (!sleeps && next_tick_ < checked + limits::kSleepSlice) continue;
    checked = next_tick_;
    // A handler's own calls, on whatever thread, need the seat.
    seat.release();
    if (!seat_.lend(transport::run_interrupt_check)) return;
    seat = std::unique_lock(seat_, std::adopt_lock);
  }
}

void Client::run_background() {
  Millis idle = kIdleTime;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      has_work_.wait_for(lock, idle, [&] { return is_stopping_ || !background_.empty(); });
      if (is_stopping_) return;
      idle = background_.empty() ? kIdleTime : Millis{0};
    }
    std::unique_lock seat(seat_, std::defer_lock);
    if (idle == Millis{0} ? !seat.try_lock_for(limits::kSleepSlice) : !seat.try_lock()) continue;
    try {
      if (idle != Millis{0}) notice_hang_ups();
      while (drive_background()) {
      }
      if (lacks_connection()) idle = kRepairTime;
    } catch (const std::exception& error) {
      // Nobody's thread: those who wait for the calls hear of it.
      core_.cancel_all(Failure::from(error));
    }
    seat.unlock();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();  // The seat is free.
  }
}

// One turn for the asynchronous calls; false once there is none. Under the seat.
bool Client::drive_background() {
  const bool moved = drive_once();
  {
    const std::lock_guard lock(mutex_);
    take_done();
    if (is_stopping_ || background_.empty()) return false;
  }
  if (moved)
    pause_.reset();
  else if (!pause_.look_again())
    sleep(Clock::now());
  return true;
}

// Does what can be done without waiting; whether that was anything. Under the seat.
bool Client::drive_once() {
  take_posted();
  const Time now = Clock::now();
  bool moved = false;
  for (std::uint32_t shard = 0; shard < connections_.size(); ++shard) {
    Connection& connection = connections_[shard];
    Session& session = core_.session(shard);
    if (connection.link && session.wants_hang_up()) disconnect(shard, session.trouble());
    if (!connection.link) connect(shard, now);
    if (!connection.link) continue;
    try {
      moved |= push(shard, now);
      if (connection.link) moved |= pull(shard);
    } catch (const ProtocolError& error) {
      disconnect(shard, str("its answer makes no sense: ", error.what()));
    }
  }
  // Deadlines hold also while others keep the links busy.
  if (now >= next_tick_) {
    next_tick_ = now + kTickTime;
    core_.tick(now);
  }
  if (core_.finished() != finished_seen_) {
    finished_seen_ = core_.finished();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  return moved;
}

void Client::close() {
  if (transport::fork_generation() != fork_generation_) return;
  if (is_closed_.exchange(true)) return;
  std::thread background;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    has_work_.notify_one();
    background = std::move(thread_);
  }
  post([this](Time) {
    core_.cancel_all({ErrorKind::kClosed, -1, "the connection to the parameter server was closed"});
  });
  if (background.joinable()) background.join();
  const std::lock_guard seat(seat_);
  take_posted();
  try {
    say_goodbye();
  } catch (const std::exception& error) {
    log_warning(
        -1, str("the connection to the parameter server ends without a goodbye: ", error.what()));
  }
  for (Connection& connection : connections_) {
    if (connection.link) connection.link->hang_up();
    connection.link.reset();
  }
  const std::lock_guard lock(mutex_);
  background_.clear();
  started_bytes_ = 0;
  changed_.notify_all();
}

}  // namespace gradring::ps
