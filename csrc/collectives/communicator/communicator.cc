#include "collectives/communicator/communicator.h"

#include <algorithm>

#include "base/config.h"
#include "base/error.h"
#include "base/threads.h"
#include "collectives/communicator/turn_wait.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

using transport::World;

constexpr std::uint64_t kWorldGroup = 1;
constexpr std::size_t kQueuedShown = 64;
// No host has so much; what is computed from sizes below it does not overflow.
constexpr std::uint64_t kLargestShared = std::uint64_t{1} << 47;
constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};  // A rank says it instead of a size.
// How long a failure may take to end the operations under way; some write the record first.
constexpr Millis kEndTime{10'000};

Rank index_of(const std::vector<Rank>& members, Rank world_rank) {
  return static_cast<Rank>(std::find(members.begin(), members.end(), world_rank) - members.begin());
}

// A handler of signals runs inside of the call that it interrupts, on the same thread: neither
// would go on before the other.
[[noreturn]] void refuse_in_handler(const Call& call) {
  throw InvalidArgument(
      str(describe(call),
          ": called by a signal handler inside of a call of this communicator, which cannot go on "
          "before the handler returns; nothing was sent. Let the handler set a flag, or close()"));
}

// What `work` is and whom it waits for, as the record has it: that needs no lock which is held
// while an operation runs.
std::string describe_wait(const World& world, const OperationRing& ring, const Work& work) {
  const std::vector<OperationRecord> records = ring.read();
  const auto running = std::find_if(
      records.rbegin(), records.rend(),
      [](const OperationRecord& record) { return record.state == OperationState::kStarted; });
  if (running == records.rend()) return describe(work.call);
  std::string text = describe(running->call, running->seq);
  if (running->queued != work.queued) text = str(describe(work.call), ", behind ", text);
  if (running->peer >= 0) text += str(", waiting for ", world.describe(running->peer), ",");
  return text;
}

}  // namespace

std::shared_ptr<Communicator> Communicator::join(const transport::JoinOptions& options) {
  auto world = World::join(options);
  std::vector<Rank> members(static_cast<std::size_t>(world->world_size()));
  for (std::size_t rank = 0; rank < members.size(); ++rank) members[rank] = static_cast<Rank>(rank);
  auto group = world->make_group(kWorldGroup, std::move(members));
  auto recorder = std::make_shared<FlightRecorder>(*world, world->record_options());
  world->set_report([known = std::weak_ptr(recorder)] {
    const auto found = known.lock();
    return found ? found->report({}) : std::string();
  });
  FlightRecorder::read_clocks(recorder, *world);
  return transport::make_here<Communicator>(std::move(world), std::move(group),
                                            std::move(recorder));
}

Communicator::Communicator(std::shared_ptr<World> world, std::shared_ptr<transport::Group> group,
                           std::shared_ptr<FlightRecorder> recorder)
    : world_(std::move(world)),
      group_(std::move(group)),
      recorder_(std::move(recorder)),
      logbook_(recorder_->open(group_, [this] { return queued(); })),
      rank_(index_of(group_->members, world_->rank())),
      can_grow_(group_->id == kWorldGroup),
      point_to_point_(world_, group_, rank_, logbook_),
      engine_(world_, group_, rank_) {
  world_->enter();
  // This rank may be in no call of ours when the news comes: then that is what the record shows.
  group_->on_failure(
      [world = world_.get(), recorder = std::weak_ptr(recorder_)](const Failure& failure) {
        if (failure.kind == ErrorKind::kClosed) return;
        world->scribe().post([recorder, failure] {
          if (const auto found = recorder.lock()) found->save(failure);
        });
      });
}

Communicator::~Communicator() {
  close();
}

Rank Communicator::local_rank() const {
  Rank count = 0;
  for (Rank rank = 0; rank < rank_; ++rank)
    if (world_->shares_host(group_->members[static_cast<std::size_t>(rank)], world_->rank()))
      ++count;
  return count;
}

Rank Communicator::local_world_size() const {
  return static_cast<Rank>(
      std::count_if(group_->members.begin(), group_->members.end(),
                    [&](Rank member) { return world_->shares_host(member, world_->rank()); }));
}

std::string Communicator::describe(Rank group_rank) const {
  return world_->describe(group_->members[static_cast<std::size_t>(group_rank)]);
}

Algorithm Communicator::algorithm_for(const Operation& operation) const {
  return engine_.decide(engine_.complete(operation), operation.algorithm);
}

void Communicator::raise_no_turn(const Operation& operation, Millis timeout) const {
  const wire::CallState running = group_->call();
  throw TimedOut(str(gradring::describe(call_of(operation)), ": did not get its turn within ",
                     seconds_between(Time{}, Time{timeout}), " s behind ",
                     running.in_progress ? gradring::describe(running.call, running.seq)
                                         : "operations that were there before",
                     "; nothing was sent, and this communicator is still open"));
}

Communicator::DriveLock Communicator::lock_drive(const Operation& operation, Millis timeout) {
  DriveLock lock(drive_, std::try_to_lock);
  if (lock.owns_lock()) [[likely]]
    return lock;
  if (drive_.is_held_here()) refuse_in_handler(call_of(operation));
  TurnWait wait(*group_, timeout);
  while (!lock.try_lock_for(wait.slice())) {
    transport::run_interrupt_check();
    if (wait.is_over()) raise_no_turn(operation, timeout);
  }
  return lock;
}

void Communicator::run(const Operation& operation, Millis timeout, const Packing& packing) {
  world_->check_process();
  const CallEnd end{*this};
  if (has_queue_.load(std::memory_order_relaxed)) let_queue_go_first(operation, timeout);
  const DriveLock lock = lock_drive(operation, timeout);
  execute(operation, timeout, 0, packing);
}

void Communicator::settle(const Operation& next, Millis timeout) {
  world_->check_process();
  const CallEnd end{*this};
  if (has_queue_.load(std::memory_order_relaxed)) let_queue_go_first(next, timeout);
  const DriveLock lock = lock_drive(next, timeout);
}

std::shared_ptr<Work> Communicator::submit(const Operation& operation, Millis timeout,
                                           const Packing& packing) {
  const Call call = call_of(operation);
  check_usable(call);
  const Ticks now = ticks_now();
  return enqueue(std::make_shared<Work>(
      group_,
      [this, operation, timeout, packing, now] { execute(operation, timeout, now, packing); }, call,
      now));
}

std::shared_ptr<Work> Communicator::submit(const Call& call,
                                           std::shared_ptr<ForeignOperation> operation,
                                           Millis timeout) {
  check_usable(call);
  const Ticks now = ticks_now();
  return enqueue(std::make_shared<Work>(
      group_,
      [this, call, operation = std::move(operation), timeout, now] {
        execute(call, *operation, timeout, now);
      },
      call, now));
}

std::shared_ptr<Work> Communicator::enqueue(std::shared_ptr<Work> work) {
  const std::lock_guard lock(queue_mutex_);
  // close() ends what it finds in the queue, and it has looked.
  if (is_stopping_) throw Closed(group_->failure().text);
  if (queue_.size() >= limits::kQueuedWorks)
    throw InvalidArgument(
        str(limits::kQueuedWorks, " asynchronous operations are waiting already; wait() for some"));
  // First, as it may fail: nobody would take up what is queued already.
  if (!progress_.joinable()) progress_ = start_thread("progress", [this] { run_progress(); });
  queue_.push_back(work);
  ++submitted_;
  has_submitted_.store(true, std::memory_order_relaxed);
  has_queue_.store(true, std::memory_order_relaxed);
  queue_filled_.notify_one();
  return work;
}

// Waits until all that was queued before has been taken up. The progress thread runs it, never the
// caller: a user's thread has a deadline of its own, and a Ctrl-C to notice.
void Communicator::let_queue_go_first(const Operation& operation, Millis timeout) {
  if (drive_.is_held_here()) refuse_in_handler(call_of(operation));
  TurnWait wait(*group_, timeout);
  std::unique_lock lock(queue_mutex_);
  const std::uint64_t before = submitted_;
  while (taken_ < before) {
    queue_moved_.wait_for(lock, wait.slice());
    lock.unlock();
    check_usable(call_of(operation));
    transport::run_interrupt_check();
    if (wait.is_over()) raise_no_turn(operation, timeout);
    lock.lock();
  }
}

void Communicator::wait(Work& work, std::optional<Millis> timeout) {
  if (!work.is_done() && drive_.is_held_here()) refuse_in_handler(work.call);
  const Time begin = Clock::now();
  Time deadline = begin + std::min(timeout.value_or(kForGood), kForGood);
  while (!work.is_done()) {
    world_->check_process();  // A forked child has no thread that would end it.
    if (group_->is_failed()) deadline = std::min(deadline, Clock::now() + kEndTime);
    const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now()) + Millis{1};
    if (work.wait_for(std::clamp(left, Millis{0}, limits::kSleepSlice))) break;
    transport::run_interrupt_check();
    if (!work.is_done() && Clock::now() >= deadline)
      throw TimedOut(str("wait: ", describe_wait(*world_, logbook_->collectives, work),
                         " is not done after ", seconds_between(begin, deadline),
                         " s; it goes on, wait() again"));
  }
  work.raise_if_failed();
}

void Communicator::start(const std::shared_ptr<Transfer>& transfer, bool in_background) {
  check_usable(transfer->call);
  if (!in_background && point_to_point_.is_driven_here()) refuse_in_handler(transfer->call);
  point_to_point_.start(transfer, in_background);
}

void Communicator::wait(const std::shared_ptr<Transfer>& transfer, Millis timeout) {
  world_->check_process();
  const CallEnd end{*this};
  if (point_to_point_.is_driven_here() && !point_to_point_.is_done(*transfer))
    refuse_in_handler(transfer->call);
  point_to_point_.wait(transfer, timeout);
}

void Communicator::run_progress() {
  while (true) {
    {
      std::unique_lock lock(queue_mutex_);
      queue_filled_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
      if (is_stopping_) return;
    }
    DriveLock drive(drive_);
    // One at a time, so that a blocking call of another thread gets its turn in between.
    std::shared_ptr<Work> work;
    {
      const std::lock_guard lock(queue_mutex_);
      if (queue_.empty()) continue;
      work = std::move(queue_.front());
      queue_.pop_front();
      ++taken_;
      has_queue_.store(!queue_.empty(), std::memory_order_relaxed);
      queue_moved_.notify_all();
    }
    work->run();
  }
}

// What waits behind the operation that runs; not all of a long queue.
std::vector<OperationRecord> Communicator::queued() {
  const std::lock_guard lock(queue_mutex_);
  std::vector<OperationRecord> records;
  for (const auto& work : queue_) {
    if (records.size() >= kQueuedShown) break;
    OperationRecord& record = records.emplace_back();
    record.state = OperationState::kQueued;
    record.call = work->call;
    record.queued = work->queued;
  }
  return records;
}

// `queued`: when it was submitted, if it was; then this is no user's thread.
template <typename CarryOut>
void Communicator::execute(const Call& call, Millis timeout, Ticks queued,
                           const CarryOut& carry_out) {
  if (group_->is_failed()) [[unlikely]]
    queued == 0 ? raise_ended(call) : check_queued(call);
  const std::uint64_t seq = ++seq_;
  group_->begin_call(seq);
  transport::Idle idle(*group_, timeout, queued == 0);
  idle.waits_in(call, seq);
  OperationRing::Slot* record = logbook_->collectives.begin(call, seq, queued);
  idle.records_in(record);
  if (OperationRing::stamps_at_once() && record != nullptr) record->stamp();
  try {
    carry_out(seq, idle);
    group_->note_finished(seq, call);
    logbook_->collectives.end(record, OperationState::kFinished);
  } catch (const InvalidArgument&) {
    --seq_;  // Nothing was sent: the call has not happened.
    logbook_->collectives.end(record, OperationState::kFailed);
    throw;
  } catch (...) {
    logbook_->collectives.end(record, OperationState::kFailed);
    const Failure failure = fail(call, seq, std::current_exception(), timeout);
    if (queued == 0) group_->note_told();
    failure.raise();
  }
}

void Communicator::execute(const Operation& operation, Millis timeout, Ticks queued,
                           const Packing& packing) {
  const Call call = call_of(operation);
  execute(call, timeout, queued, [&](std::uint64_t seq, transport::Idle& idle) {
    if (packing.from != nullptr) packing.from->pack();
    engine_.execute(operation, call, seq, idle);
    if (packing.to != nullptr) packing.to->unpack();
  });
}

void Communicator::execute(const Call& call, ForeignOperation& operation, Millis timeout,
                           Ticks queued) try {
  const auto carry_out = [&](std::uint64_t, transport::Idle& idle) {
    while (!operation.advance()) idle.on_clock();
  };
  if (call.op != OpKind::kSend && call.op != OpKind::kRecv)
    return execute(call, timeout, queued, carry_out);
  // Between two ranks only: no number that all count, and nothing to compare.
  check_queued(call);
  transport::Idle idle(*group_, timeout, queued == 0);
  try {
    carry_out(seq_, idle);
  } catch (const InvalidArgument&) {
    throw;
  } catch (...) {
    fail(call, seq_, std::current_exception(), timeout).raise();
  }
} catch (...) {
  operation.give_up();
  throw;
}

void Communicator::execute(const Call& call, Composition& operation, Millis timeout,
                           Ticks queued) try {
  execute(call, timeout, queued, [&](std::uint64_t seq, transport::Idle& idle) {
    Steps steps(engine_, call, seq, idle);
    operation.carry_out(steps);
  });
} catch (...) {
  operation.give_up();
  throw;
}

std::shared_ptr<SharedArray> Communicator::share_memory(std::uint64_t bytes, Millis timeout) {
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(world_size()));
  const bool is_beyond_all = bytes > kLargestShared / sizes.size();
  sizes[static_cast<std::size_t>(rank_)] =
      is_beyond_all || engine_.can_share(bytes) ? bytes : kNoRoom;
  Operation exchange;
  exchange.request.op = OpKind::kAllGather;
  exchange.request.dtype = DType::kInt64;
  exchange.request.count = sizes.size();
  exchange.step_of = StepOf::kEmpty;
  exchange.input = reinterpret_cast<const std::byte*>(&sizes[static_cast<std::size_t>(rank_)]);
  exchange.output = reinterpret_cast<std::byte*>(sizes.data());
  run(exchange, timeout);
  // All ranks know the same numbers: all of them refuse it, and nothing has begun.
  if (const auto at = std::find(sizes.begin(), sizes.end(), kNoRoom); at != sizes.end())
    throw DeviceError(str("empty: ", describe(static_cast<Rank>(at - sizes.begin())),
                          " cannot have so much shared memory, by its host's or its ulimit -v"));
  const auto differs = [&](auto size) { return size != bytes; };
  const auto other =
      static_cast<std::size_t>(std::find_if(sizes.begin(), sizes.end(), differs) - sizes.begin());
  if (other == sizes.size() && is_beyond_all)
    throw InvalidArgument(str("empty: ", sizes.size(), " ranks ask for ", bytes,
                              " bytes each; all arrays together are at most ", kLargestShared,
                              " bytes"));
  const CallEnd end{*this};
  const DriveLock lock = lock_drive(exchange, kForGood);  // Something was sent.
  const Call call = call_of(exchange);
  check_usable(call);
  transport::Idle idle(*group_, timeout, true);
  idle.waits_in(call, seq_);
  try {
    if (other != sizes.size())
      throw Mismatch(str("empty: ", describe(rank_), " asks for ", bytes,
                         " bytes of shared memory, ", describe(static_cast<Rank>(other)), " for ",
                         sizes[other]));
    return engine_.share_memory(bytes, idle);
  } catch (...) {
    const Failure failure = fail(call, seq_, std::current_exception(), timeout);
    group_->note_told();
    failure.raise();
  }
}

}  // namespace gradring::collectives
