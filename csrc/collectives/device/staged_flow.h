// StagedFlow: which round of staged work may go where, and when: rounds go down to slots of host
// memory on one stream, through the network on one thread, and up again on another stream. A state
// machine without I/O, clock or memory: it says what to put into streams and what to write into
// words, in this order, and is told what has happened. Two ways, by what the device can do:
//   waits on memory: all of a work's steps are put into the streams at once, and wait there for
//     words. After that no staged work needs the driver to get on: not while a stream is stuck, not
//     in a user's cudaFree. (What else is under way may: decision 26.) When something fails, the
//     words get the values that are waited for, and a stop word makes what would be written
//     nothing.
//   does not: a round's steps are issued when its turn has come, and never those that would wait.
// Rounds have tickets, counted through from work to work; ticket t uses slot t % slots. Used by
// StagedLane under its lock, and by the simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace gradring::collectives {

using Ticket = std::uint32_t;

enum class StepKind : std::uint8_t {
  // On the stream that goes down.
  kAwaitSlot,   // Until the slot's last round has gone up.
  kDown,        // Copy to the slot.
  kSignalDown,  // Tell the host: the slot's ready word becomes the ticket, or an event.
  // On the stream that goes up.
  kAwaitSent,   // Until the slot's sent word has come to the ticket.
  kUp,          // Copy from the slot, unless the work was stopped.
  kFreeSlot,    // The slot may be used again from here on.
  kAwaitDowns,  // Until all that the work has put into the other stream is done.
  kEnd,         // The work is over here.
  // By the host, at once.
  kStop,     // The work's stop word.
  kSetSent,  // The slot's sent word becomes the ticket.
};

struct Step {
  StepKind kind;
  std::uint64_t work = 0;
  std::uint32_t round = 0;
  Ticket ticket = 0;
};

class StagedFlow {
 public:
  StagedFlow(std::uint32_t slots, bool waits_on_memory)
      : slots_(slots), waits_on_memory_(waits_on_memory) {}

  std::uint32_t slot_of(Ticket ticket) const { return ticket % slots_; }
  bool waits_on_memory() const { return waits_on_memory_; }

  // Work comes in the order in which the network will take it up. Its first ticket.
  Ticket begin(std::uint64_t work, std::uint32_t rounds, std::vector<Step>& steps);
  // The slot holds what is to go up. Rounds of a work in order.
  void sent(std::uint64_t work, std::uint32_t round, std::vector<Step>& steps);
  // What has not been sent never will be: the host is not using the work's slots any more, and will
  // not. Nothing if all has been sent.
  void fail(std::uint64_t work, std::vector<Step>& steps);

  bool is_idle() const { return works_.empty(); }

 private:
  struct Work {
    std::uint64_t id = 0;
    std::uint32_t rounds = 0;
    Ticket first = 0;
    std::uint32_t issued = 0;  // Rounds whose way down is in the stream.
    std::uint32_t sent = 0;
    bool has_failed = false;
  };

  void issue_down(Work& work, std::vector<Step>& steps) const;
  void issue_up(const Work& work, std::uint32_t round, std::vector<Step>& steps) const;
  void issue_more(std::vector<Step>& steps);
  void release_failed(std::vector<Step>& steps);

  const std::uint32_t slots_;
  const bool waits_on_memory_;
  Ticket next_ = 1;
  std::deque<Work> works_;  // That have not all been sent, in order.
};

// Whether `now` has come to `ticket`, as a device compares: numbers wrap.
inline bool has_come(Ticket now, Ticket ticket) {
  return static_cast<std::int32_t>(now - ticket) >= 0;
}

}  // namespace gradring::collectives
