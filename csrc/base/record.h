// The last operations of a rank, as they happen: a ring of fixed size that one thread at a time
// writes (whoever holds the lock that orders the operations) and anybody may read meanwhile,
// without a lock. Recording an operation costs some stores and one reading of the clock. What is
// still under way is never overwritten by what came later.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/call.h"
#include "base/ticks.h"

namespace gradring {

struct RecordOptions {
  std::size_t operations = 1024;  // Kept per communicator; 0 records nothing.
  // Where records go after a failure and where the trace goes at the end; "" for nowhere. "{job}"
  // stands for the job's id.
  std::string directory;
  std::string trace_directory;
};

enum class OperationState : std::uint8_t { kQueued = 0, kStarted = 1, kFinished = 2, kFailed = 3 };
std::string_view name(OperationState state);

// One operation, read from a ring. Stamps are 0 where there is none.
struct OperationRecord {
  OperationState state = OperationState::kStarted;
  Call call;
  std::uint64_t seq = 0;
  Ticks queued = 0;
  Ticks begun = 0;
  Ticks ended = 0;
  // Payload over links; shared memory is not counted.
  std::uint64_t sent = 0;
  std::uint64_t to_send = 0;
  std::uint64_t received = 0;
  std::uint64_t to_receive = 0;
  Rank peer = -1;  // World rank: last waited for, or the other end of a message; -1: none.
  std::int32_t tag = 0;
};

class OperationRing {
 public:
  // One operation's place. Its writer keeps the pointer until end().
  class alignas(64) Slot {
   public:
    // When it began, if that is not known yet: the first wait of a small operation costs nothing,
    // since it waits anyway.
    void stamp() {
      if (begun_.load(std::memory_order_relaxed) == 0)
        begun_.store(ticks_now(), std::memory_order_release);
    }
    void expect(std::uint64_t to_send, std::uint64_t to_receive);  // Adds up.
    void set_moved(std::uint64_t sent, std::uint64_t received);
    void set_peer(Rank world_rank);
    void set_message(Rank world_rank, std::int32_t tag);
    std::uint64_t sent() const;
    std::uint64_t received() const;

   private:
    friend class OperationRing;
    using Word = std::atomic<std::uint64_t>;
    inline bool is_under_way() const;
    inline void begin(std::uint64_t ticket, const Call& call, std::uint64_t seq, Ticks queued);
    void detail();  // Makes the second line this operation's.
    [[gnu::noinline, gnu::cold]] void add_up(Ticks now) const;
    bool read(OperationRecord& record, std::uint64_t& ticket) const;

    // (ticket << 2 | state); 0 while the first line is being written, and before it ever was. Every
    // other store is a release and every load an acquire, so that a reader that finds the version
    // unchanged has read what belongs to it.
    Word version_;
    Word what_;  // Call's first eight bytes.
    Word count_;
    Word counts_hash_;
    Word seq_;
    Word queued_;
    Word begun_;
    Word ended_;

    Word detail_of_;  // The ticket that the second line belongs to.
    Word sent_;
    Word to_send_;
    Word received_;
    Word to_receive_;
    std::atomic<Rank> peer_;
    std::atomic<std::int32_t> tag_;
  };
  static_assert(sizeof(Slot) == 128);

  // Whether who begins an operation stamps it then, all of the process: where what operations took
  // is added up, and in a trace, which must show causes before effects (what is stamped in its
  // first wait, after the others were told, may be stamped too late for that).
  static bool stamps_at_once() { return stamps_at_once_.load(std::memory_order_relaxed); }
  static void stamp_at_once() { stamps_at_once_.store(true, std::memory_order_relaxed); }

  // `is_added_up`: in the OperationTallies too.
  explicit OperationRing(std::size_t size, bool is_added_up = true);

  // The writer's. begin() returns nullptr where nothing is recorded: an empty ring, or one that is
  // full of operations under way.
  Slot* begin(const Call& call, std::uint64_t seq, Ticks queued = 0);
  void end(Slot* slot, OperationState state);

  // Any thread's: what is there, in the order of beginning.
  std::vector<OperationRecord> read() const;
  std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  // Where what is under way still has the next place.
  [[gnu::noinline, gnu::cold]] Slot* begin_beyond(const Call& call, std::uint64_t seq,
                                                  Ticks queued);

  inline static std::atomic<bool> stamps_at_once_{false};

  std::size_t size_;
  std::unique_ptr<void, Free> memory_;  // Zeroed by the system, page by page as it is used.
  Slot* slots_ = nullptr;
  bool is_added_up_;
  std::atomic<std::uint64_t> begun_{0};  // A statistic: relaxed.
  // The writer's: tickets that are nobody's, as what was under way in their places still is.
  std::uint64_t skipped_ = 0;
};

}  // namespace gradring
