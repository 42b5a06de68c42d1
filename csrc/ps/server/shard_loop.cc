#include "ps/server/shard_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "base/threads.h"
#include "transport/links/pass_fd.h"
#include "transport/links/shm_link.h"
#include "transport/links/tcp_link.h"

namespace gradring::ps {
namespace {

using transport::Purpose;

constexpr Millis kLookTime{2};
constexpr Millis kMemoryTime{5000};
constexpr Millis kNoticeTime{100};
constexpr std::size_t kAnswerTurnBytes = std::size_t{256} << 10;
constexpr int kReadsPerTurn = 16;
constexpr Millis kStepPatience{2};  // So long a step waits for a turn without requests.

bool is_training(wire::PsType type) {
  return type >= wire::PsType::kPull && type <= wire::PsType::kPushDense;
}

}  // namespace

ShardLoop::ShardLoop(const ShardOptions& options, std::unique_ptr<DurableJournal> journal,
                     std::unique_ptr<transport::Door> door, Hooks hooks)
    : options_(options),
      journal_(std::move(journal)),
      shard_(options, *journal_),
      door_(std::move(door)),
      hooks_(std::move(hooks)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  try {
    journal_->replay(shard_);
  } catch (const HalfDone& error) {
    throw DeviceError(error.what());
  }
  newest_incarnation_.store(shard_.newest_incarnation(), std::memory_order_relaxed);
}

ShardLoop::~ShardLoop() {
  stop();
}

void ShardLoop::start() {
  thread_ = start_thread("shard", [this] { run(); });
}

void ShardLoop::stop() {
  is_stopping_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
  is_over_.store(true);
  journal_.reset();  // Before the shard, which it may look at to the last; its files are free now.
}

void ShardLoop::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void ShardLoop::post(Task task) {
  posted_.with([&](auto& posted) {
    posted.push_back(std::move(task));
    has_posted_.store(true, std::memory_order_release);
  });
  wake();
}

void ShardLoop::deliver(transport::Arrival arrival) {
  // std::function wants what can be copied.
  auto shared = std::make_shared<transport::Arrival>(std::move(arrival));
  post([this, shared](Shard&, std::vector<Answer>&) { admit(std::move(*shared)); });
}

struct ShardLoop::Begun {
  Step step;  // This and the next: the shard's thread's.
  Time due{};
  std::mutex mutex;  // Guards the rest.
  std::condition_variable changed;
  bool is_done = false;
  std::exception_ptr error;

  void end(std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    error = std::move(thrown);
    is_done = true;
    changed.notify_all();
  }
};

void ShardLoop::ask(const Task& task) {
  const auto begun = std::make_shared<Begun>();
  post([task, begun](Shard& shard, std::vector<Answer>& answers) {
    std::exception_ptr thrown;
    try {
      task(shard, answers);
    } catch (...) {
      thrown = std::current_exception();
    }
    begun->end(std::move(thrown));
  });
  finish(*begun);
}

std::shared_ptr<ShardLoop::Begun> ShardLoop::begin(Step step, Time due) {
  const auto begun = std::make_shared<Begun>();
  begun->step = std::move(step);
  begun->due = due;
  post([this, begun](Shard&, std::vector<Answer>&) { steps_.push_back(begun); });
  return begun;
}

void ShardLoop::finish(Begun& begun) {
  std::unique_lock lock(begun.mutex);
  while (!begun.is_done) {
    if (is_over_.load()) throw Closed("this server of parameters has stopped");
    begun.changed.wait_for(lock, limits::kSleepSlice);
  }
  if (begun.error) std::rethrow_exception(begun.error);
}

void ShardLoop::run() {
  try {
    while (!is_stopping_.load(std::memory_order_acquire)) {
      const Time now = Clock::now();
      const bool moved = turn(now);
      if (moved) pause_.reset();
      // A step is no reason to look for requests more often.
      if (!take_steps(now, moved) && !moved && !pause_.look_again()) sleep(now);
    }
  } catch (const std::exception& error) {
    // The state and the journal may differ from here on: nothing more may be acknowledged.
    const Failure failure = Failure::from(error);
    log_warning(-1, str("shard ", options_.shard, " stops: ", failure.text));
    hooks_.failed(options_.shard, failure);
  }
  is_over_.store(true);
  for (auto& [connection, guest] : guests_) guest.link->hang_up();
  guests_.clear();
  newcomers_.clear();
  door_.reset();
}

// Does what can be done without waiting; whether that was anything.
bool ShardLoop::turn(Time now) {
  bool moved = take_posted();
  if (now >= next_look_) {
    next_look_ = now + kLookTime;
    if (door_) work_at_door(now);
    if (!newcomers_.empty()) moved |= take_memory(now);
    if (now >= shard_.next_tick()) shard_.tick(now, answers_);
    has_news_ = true;  // The journal may have work of its own.
  }
  if (now >= next_notice_) {
    next_notice_ = now + kNoticeTime;
    // Shared memory tells of its peer's end only by its doorbell, which is heard after a sleep; a
    // busy shard never sleeps.
    for (auto& [connection, guest] : guests_) guest.link->finish_sleep();
  }
  for (auto& [connection, guest] : guests_) moved |= read_from(connection, guest, now);
  settle(now);
  for (auto& [connection, guest] : guests_)
    if (!guest.out.empty()) moved |= write_to(guest);
  remove_gone(now);
  return moved;
}

// Whether there was one to take.
bool ShardLoop::take_steps(Time now, bool is_busy) {
  const Time due = is_busy ? now - kStepPatience : now;
  bool took = false;
  std::erase_if(steps_, [&](const std::shared_ptr<Begun>& begun) {
    if (begun->due > due) return false;
    took = true;
    std::exception_ptr thrown;
    try {
      if (const std::optional<Time> next = begun->step(shard_, last_training_)) {
        begun->due = *next;
        return false;
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    begun->end(std::move(thrown));
    return true;
  });
  return took;
}

bool ShardLoop::take_posted() {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<Task> tasks;
  posted_.with([&](auto& posted) {
    tasks.swap(posted);
    has_posted_.store(false, std::memory_order_release);
  });
  for (const Task& task : tasks) task(shard_, answers_);
  has_news_ = true;
  return !tasks.empty();
}

void ShardLoop::admit(transport::Arrival arrival) {
  const Time now = Clock::now();
  if (arrival.intro.purpose == Purpose::kSharedParameters) {
    if (newcomers_.size() >= limits::kHandshakesPending) newcomers_.pop_front();
    newcomers_.push_back({arrival.connection.take_fd(), now + kMemoryTime});
    next_look_ = {};
    return;
  }
  transport::end_with_silence(arrival.connection.get(), limits::kPsSilence);
  add_guest(std::make_unique<transport::TcpLink>(std::move(arrival.connection)), now);
}

void ShardLoop::add_guest(std::unique_ptr<transport::Link> link, Time now) {
  if (guests_.size() >= limits::kPsClients) {
    log_warning_once(-1, "ps clients",
                     str("shard ", options_.shard, ": refused a client: there are ", guests_.size(),
                         " connections already"));
    return;
  }
  const Connection connection = ++last_connection_;
  guests_[connection].link = std::move(link);
  shard_.connected(connection, now);
}

bool ShardLoop::take_memory(Time now) {
  bool moved = false;
  for (auto one = newcomers_.begin(); one != newcomers_.end();) {
    pollfd entry{one->fd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 0) <= 0) {
      one = now < one->deadline ? std::next(one) : newcomers_.erase(one);
      continue;
    }
    try {
      auto memory = transport::SharedMemory::attach(transport::recv_fd(one->fd.get(), now),
                                                    transport::ShmLink::kMemoryBytes);
      add_guest(std::make_unique<transport::ShmLink>(std::move(memory), std::move(one->fd), false),
                now);
    } catch (const Error& error) {
      log_warning_once(-1, "ps memory", str("a local client passed no memory: ", error.what()));
    }
    one = newcomers_.erase(one);
    moved = true;
  }
  return moved;
}

// Requests of checkpoints come behind what is held for them: only a header says what it is.
bool ShardLoop::may_read(Connection connection, const Guest& guest) const {
  if (guest.out_bytes >= limits::kPsAnswerBytes) return false;
  return shard_.takes_from(connection) || !guest.reader.has_header() ||
         is_control(guest.reader.header().type);
}

bool ShardLoop::read_from(Connection connection, Guest& guest, Time now) {
  // Bounded work, so that nobody waits for long while one client pours.
  bool moved = false;
  const std::size_t answers_before = answers_.size();
  if (guest.out_bytes < limits::kPsAnswerBytes && shard_.has_more(connection)) {
    shard_.go_on(connection, now, answers_);
    moved = has_news_ = true;
  }
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    if (guest.is_gone || !may_read(connection, guest)) return moved;
    try {
      switch (guest.reader.read(*guest.link)) {
        case FrameReader::Step::kNothing: return moved;
        case FrameReader::Step::kClosed: guest.is_gone = true; return true;
        case FrameReader::Step::kMoved: moved = true; break;
        case FrameReader::Step::kHeader:
          moved = true;
          guest.reader.use_own(shard_.spares().take(guest.reader.header().payload_bytes));
          break;
        case FrameReader::Step::kFrame:
          moved = has_news_ = true;
          if (is_training(guest.reader.header().type)) last_training_ = now;
          shard_.receive(connection, {guest.reader.header(), guest.reader.take_payload()}, now,
                         answers_);
          break;
      }
    } catch (const ProtocolError& error) {
      // Keyed without the port and the numbers in the error: one line for each host.
      const std::string from = guest.link->peer_address();
      log_warning_once(
          -1, str("ps frame", from.substr(0, from.rfind(':'))),
          str("shard ", options_.shard, ": closed the connection of ", from, ": ", error.what()));
      guest.is_gone = true;
      return true;
    }
    std::size_t bytes = 0;
    for (std::size_t at = answers_before; at < answers_.size(); ++at)
      bytes += answers_[at].payload().size();
    if (bytes >= kAnswerTurnBytes) return true;
  }
  return moved;
}

// First the journal, then the answers: nothing is acknowledged that could still be lost.
void ShardLoop::settle(Time now) {
  if (!has_news_) return;
  has_news_ = false;
  journal_->sync(now);
  newest_incarnation_.store(shard_.newest_incarnation(), std::memory_order_relaxed);
  for (Job& job : shard_.take_jobs()) hooks_.job(options_.shard, std::move(job));
  for (Answer& answer : answers_) {
    const auto found = guests_.find(answer.to);
    if (found == guests_.end()) continue;
    Guest& guest = found->second;
    answer.frame.header.payload_bytes = answer.payload().size();
    guest.out_bytes += wire::kPsHeaderBytes + answer.payload().size();
    guest.out.push_back({wire::encode(answer.frame.header), std::move(answer)});
  }
  answers_.clear();
}

bool ShardLoop::write_to(Guest& guest) {
  bool moved = false;
  guest.is_blocked = false;
  while (!guest.out.empty() && !guest.is_gone) {
    const Outgoing& out = guest.out.front();
    const std::size_t of_head = std::min(guest.out_sent, wire::kPsHeaderBytes);
    const auto head = std::span<const std::byte>(out.head).subspan(of_head);
    const auto body = out.answer.payload().subspan(guest.out_sent - of_head);
    const transport::Io io = guest.link->send_some(head, body);
    if (io.closed) {
      guest.is_gone = true;
      return true;
    }
    guest.out_sent += io.bytes;
    moved |= io.bytes > 0;
    if (io.bytes < head.size() + body.size()) {
      guest.is_blocked = true;
      return moved;
    }
    guest.out_bytes -= guest.out_sent;
    guest.out_sent = 0;
    shard_.spares().give(std::move(guest.out.front().answer.frame.payload));
    guest.out.pop_front();
  }
  return moved;
}

void ShardLoop::remove_gone(Time now) {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    if (!guest->second.is_gone) {
      ++guest;
      continue;
    }
    shard_.disconnected(guest->first, now);
    guest = guests_.erase(guest);
  }
}

void ShardLoop::work_at_door(Time now) {
  for (transport::Arrival& arrival : door_->work(now)) hooks_.arrived(std::move(arrival));
}

// Until a link has something, somebody comes or calls, a step is due, or the shard's next tick.
void ShardLoop::sleep(Time now) {
  std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
  bool may_sleep = !has_posted_.load(std::memory_order_acquire);
  for (auto& [connection, guest] : guests_) {
    const bool reads = may_read(connection, guest);
    // Whose end a poll would tell again and again, and who is heard when it may go on.
    if (!reads && !guest.is_blocked) continue;
    may_sleep &= guest.link->prepare_sleep(reads, guest.is_blocked);
    polls.push_back({guest.link->fd(), guest.link->poll_events(reads, guest.is_blocked), 0});
  }
  for (const Newcomer& one : newcomers_) polls.push_back({one.fd.get(), POLLIN, 0});
  if (door_) door_->add_polls(polls);
  Time until = std::min(shard_.next_tick(), now + limits::kSleepSlice);
  for (const auto& begun : steps_) until = std::min(until, begun->due);
  const auto left = std::max(until - Clock::now(), Clock::duration{});
  const timespec timeout{0, std::chrono::nanoseconds(left).count()};  // Below a second.
  if (may_sleep) ::ppoll(polls.data(), polls.size(), &timeout, nullptr);
  for (auto& [connection, guest] : guests_) guest.link->finish_sleep();
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  next_look_ = {};
}

}  // namespace gradring::ps
