#include "emulator/block.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/fiber.h"
#include "support/split_mix.h"

namespace gradring::emulator {

thread_local Place place;

namespace {

// What shared memory holds before it is written: nobody's zeros.
constexpr int kGarbage = 0xA5;

struct Ordering {
  std::atomic<Order> order = Order::kForward;
  std::atomic<std::uint64_t> seed = 0;
};
Ordering ordering;
std::atomic<StreamHook> stream_hook = nullptr;

template <typename Item>
void put_in_order(std::vector<Item>& items, testing::SplitMix64& dice) {
  const Order order = ordering.order;
  if (order == Order::kReverse) std::reverse(items.begin(), items.end());
  if (order != Order::kRandom) return;
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[dice.below(i)]);
}

Index at(std::size_t linear, const Index& size) {
  return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
          static_cast<unsigned>(linear / size.x / size.y)};
}

std::string text_of(const Site& site) {
  return std::string(site.file_name()) + ":" + std::to_string(site.line());
}

// Lanes of a warp that wait for each other, or are about to read what the others brought.
struct Meeting {
  std::uint32_t mask = 0;
  std::uint32_t unread = 0;  // Once all have come.
  bool is_complete = false;
  Site site;
  Exchanged exchanged;
};

enum class State { kReady, kAtBarrier, kInMeeting, kEnded };

struct Thread {
  Fiber fiber;
  Index index;
  State state = State::kReady;
  bool predicate = false;
  Site site;  // Of the barrier or the meeting.
};

struct Warp {
  std::uint32_t alive = 0;
  std::list<Meeting> meetings;
};

class Block {
 public:
  void run(const Shape& shape, const std::function<void()>& body, testing::SplitMix64& dice);
  int barrier(bool predicate, Site site);
  Exchanged exchange(std::uint32_t mask, std::uint64_t value, Site site);
  unsigned lane() const { return static_cast<unsigned>(current_ % kWarp); }

 private:
  static void enter(void* block);
  void prepare(const Shape& shape);
  void resume(std::size_t thread);
  void wait(State state, Site site);
  void complete(Warp& warp, std::size_t first_thread);
  void release_barrier();
  [[noreturn]] void fail_waiting() const;

  std::vector<std::unique_ptr<Thread>> threads_;  // Kept from block to block.
  std::vector<Warp> warps_;
  std::size_t count_ = 0;
  std::size_t current_ = 0;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  int predicates_ = 0;  // Of the last barrier.
};

thread_local Block running;

void Block::prepare(const Shape& shape) {
  count_ = shape.block.volume();
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
  warps_.assign((count_ + kWarp - 1) / kWarp, {});
  for (std::size_t i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.index = at(i, shape.block);
    thread.state = State::kReady;
    thread.fiber.start(&Block::enter, this);
    warps_[i / kWarp].alive |= 1u << (i % kWarp);
  }
}

void Block::enter(void* block) {
  Block& self = *static_cast<Block*>(block);
  Thread& thread = *self.threads_[self.current_];
  try {
    (*self.body_)();
  } catch (...) {
    self.failure_ = std::current_exception();
  }
  thread.state = State::kEnded;
  thread.fiber.leave();
}

void Block::resume(std::size_t thread) {
  current_ = thread;
  place.thread = threads_[thread]->index;
  threads_[thread]->fiber.resume();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (threads_[thread]->state != State::kEnded) return;
  Warp& warp = warps_[thread / kWarp];
  warp.alive &= ~(1u << (thread % kWarp));
  complete(warp, thread - thread % kWarp);
}

void Block::run(const Shape& shape, const std::function<void()>& body, testing::SplitMix64& dice) {
  prepare(shape);
  body_ = &body;
  std::vector<std::size_t> ready;
  while (true) {
    ready.clear();
    bool is_over = true;
    bool all_at_barrier = true;
    for (std::size_t i = 0; i < count_; ++i) {
      const State state = threads_[i]->state;
      if (state == State::kReady) ready.push_back(i);
      is_over = is_over && state == State::kEnded;
      all_at_barrier = all_at_barrier && state != State::kInMeeting;
    }
    if (is_over) return;
    if (ready.empty() && !all_at_barrier) fail_waiting();
    if (ready.empty()) release_barrier();
    put_in_order(ready, dice);
    for (const std::size_t thread : ready) resume(thread);
  }
}

void Block::release_barrier() {
  predicates_ = 0;
  const Site* site = nullptr;
  for (std::size_t i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    if (thread.state != State::kAtBarrier) continue;
    if (site == nullptr) site = &thread.site;
    if (site->line() != thread.site.line() ||
        std::strcmp(site->file_name(), thread.site.file_name()) != 0)
      throw Fault("threads of one block wait in two barriers: " + text_of(*site) + " and " +
                  text_of(thread.site));
    predicates_ += thread.predicate ? 1 : 0;
    thread.state = State::kReady;
  }
}

void Block::fail_waiting() const {
  std::string text = "threads of one block wait for each other for ever:";
  for (std::size_t i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == State::kEnded) continue;
    text += " thread " + std::to_string(i) + " at " + text_of(thread.site) + ";";
    if (text.size() > 500) break;
  }
  throw Fault(text);
}

void Block::wait(State state, Site site) {
  Thread& thread = *threads_[current_];
  thread.state = state;
  thread.site = site;
  thread.fiber.pause();
}

int Block::barrier(bool predicate, Site site) {
  threads_[current_]->predicate = predicate;
  wait(State::kAtBarrier, site);
  return predicates_;
}

// Lets those go on whose meeting needs nobody any more.
void Block::complete(Warp& warp, std::size_t first_thread) {
  for (Meeting& meeting : warp.meetings) {
    const std::uint32_t needed = meeting.mask & warp.alive;
    if (meeting.is_complete || (needed & ~meeting.exchanged.present) != 0) continue;
    meeting.is_complete = true;
    meeting.unread = meeting.exchanged.present;
    for (unsigned lane = 0; lane < kWarp; ++lane)
      if ((meeting.unread >> lane & 1) != 0) threads_[first_thread + lane]->state = State::kReady;
  }
}

Exchanged Block::exchange(std::uint32_t mask, std::uint64_t value, Site site) {
  Warp& warp = warps_[current_ / kWarp];
  const unsigned number = lane();
  const std::uint32_t bit = 1u << number;
  if ((mask & bit) == 0) throw Fault("a lane that its own mask leaves out, at " + text_of(site));
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(), [&](const Meeting& m) {
    return !m.is_complete && m.mask == mask && m.site.line() == site.line();
  });
  if (meeting == warp.meetings.end()) {
    warp.meetings.emplace_back();
    meeting = std::prev(warp.meetings.end());
    meeting->mask = mask;
    meeting->site = site;
  }
  meeting->exchanged.present |= bit;
  meeting->exchanged.values[number] = value;
  threads_[current_]->state = State::kInMeeting;
  complete(warp, current_ - number);
  // Pauses even where nobody is missing: the others shall be able to go first.
  threads_[current_]->site = site;
  threads_[current_]->fiber.pause();
  const Exchanged exchanged = meeting->exchanged;
  meeting->unread &= ~bit;
  if (meeting->unread == 0) warp.meetings.erase(meeting);
  return exchanged;
}

}  // namespace

void set_order(Order order, std::uint64_t seed) {
  ordering.order = order;
  ordering.seed = seed;
}

void set_stream_hook(StreamHook hook) {
  stream_hook = hook;
}

int enqueue(void* stream, Work work) {
  if (const StreamHook hook = stream_hook) return hook(stream, std::move(work));
  work();
  return 0;
}

bool is_valid(const Shape& shape) {
  const std::size_t threads = shape.block.volume();
  return shape.grid.volume() > 0 && threads > 0 && threads <= kMostThreads &&
         shape.shared_bytes <= kMostSharedBytes;
}

void run_grid(const Shape& shape, const std::function<void()>& thread) {
  testing::SplitMix64 dice(ordering.seed);
  std::vector<std::size_t> blocks(shape.grid.volume());
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = i;
  put_in_order(blocks, dice);
  const std::unique_ptr<std::byte[]> shared(new std::byte[shape.shared_bytes]);
  place.grid_size = shape.grid;
  place.block_size = shape.block;
  place.shared = shared.get();
  for (const std::size_t block : blocks) {
    place.block = at(block, shape.grid);
    std::memset(shared.get(), kGarbage, shape.shared_bytes);
    running.run(shape, thread, dice);
  }
}

int block_barrier(bool predicate, Site site) {
  return running.barrier(predicate, site);
}

unsigned lane_number() {
  return running.lane();
}

Exchanged warp_exchange(std::uint32_t mask, std::uint64_t value, Site site) {
  return running.exchange(mask, value, site);
}

}  // namespace gradring::emulator
