// PlanRun walks a plan over links: it moves what can be moved without waiting, reduces what has
// arrived, and says what it waits for. It never blocks and reads no clock: the communicator drives
// it with real links, the simulator with seeded ones. One operation, one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/call.h"
#include "base/error.h"
#include "collectives/plan/plan.h"
#include "transport/membership/idle.h"
#include "transport/mesh.h"
#include "wire/op_header.h"

namespace gradring::collectives {

// Thrown by advance(): a link ended before everything went over it. The communicator finds out who
// is really to blame.
struct LinkClosed {
  Rank peer = -1;
  bool was_receiving = false;
  std::uint64_t bytes = 0;
  std::uint64_t expected_bytes = 0;
};

// Thrown by advance(): the other end is in another call. Knows group ranks only; the communicator
// says it in terms of the whole job.
struct CallsDiffer : Mismatch {
  CallsDiffer(Rank other, std::string my_call, std::string their_call, std::string what_to_do)
      : Mismatch(str("this rank called ", my_call, " but rank ", other, " called ", their_call)),
        peer(other),
        mine(std::move(my_call)),
        theirs(std::move(their_call)),
        advice(std::move(what_to_do)) {}
  Rank peer;
  std::string mine;
  std::string theirs;
  std::string advice;  // As of advice_on.
};

struct RunBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* scratch = nullptr;  // plan.scratch_bytes, 64-byte aligned.
};

// How far one direction to or from one peer is, for errors.
struct StreamProgress {
  Rank peer = -1;
  bool is_recv = false;
  std::uint64_t bytes = 0;
  std::uint64_t expected_bytes = 0;
};

class PlanRun {
 public:
  // `plan` outlives the run. `reduction` says dtype, op and, for avg, the divisor that final
  // reductions use.
  PlanRun(const Plan& plan, const Call& call, std::uint64_t seq,
          const kernels::Reduction& reduction, RunBuffers buffers);

  // Does all that can be done now. True when the plan is complete. Throws LinkClosed, CallsDiffer,
  // ProtocolError, PeerLost.
  bool advance(transport::Peers& peers);
  bool has_moved() const { return has_moved_; }  // The last advance() made progress.
  // What to wait for after advance() returned false.
  void interests(transport::Peers& peers, std::vector<transport::Interest>& interests) const;
  // Payload that went over the links so far, and that will have gone in the end.
  struct Traffic {
    std::uint64_t sent = 0;
    std::uint64_t to_send = 0;
    std::uint64_t received = 0;
    std::uint64_t to_receive = 0;
  };
  Traffic traffic() const;
  Rank awaited() const;  // The first that something has still to come from, or go to; -1: none.
  // After advance() returned false: a stream that has bytes for a peer that `has_left`, which takes
  // none any more.
  std::optional<StreamProgress> send_in_vain(const std::function<bool(Rank)>& has_left) const;
  // The streams that are not through yet, the ones that block first. Of one that only says that its
  // sender is in this call, 0 of 0 bytes are received; such sends are left out.
  std::vector<StreamProgress> unfinished() const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Stream {
    Rank peer = -1;
    std::uint32_t action = kNone;    // The one it is at; kNone: all are complete.
    std::uint32_t last = kNone;      // Of its actions.
    std::uint64_t action_bytes = 0;  // Done of `action`.
    std::uint64_t total_bytes = 0;
    std::uint64_t expected_bytes = 0;
    std::uint64_t token_bytes = 0;  // The first of them, which are nobody's payload.
    std::size_t header_bytes = 0;
    wire::OpHeaderBytes header{};
    bool is_done() const { return action == kNone; }
    std::uint64_t payload() const { return total_bytes - std::min(total_bytes, token_bytes); }
    std::uint64_t expected_payload() const { return expected_bytes - token_bytes; }
  };

  Stream& stream_to(std::vector<Stream>& streams, Rank peer);
  std::uint64_t together(const Stream& stream) const;
  bool push(Stream& stream, transport::Peers& peers);
  bool pull(Stream& stream, transport::Peers& peers);
  bool count_bytes(Stream& stream, std::size_t bytes);
  void check_header(const Stream& stream) const;
  void complete(std::uint32_t action);
  void execute(const Action& action);
  const std::byte* at(Slice slice) const;
  std::byte* into(Slice slice) const;

  const Plan& plan_;
  Call call_;
  std::uint64_t seq_;
  kernels::Reduction reduction_;
  RunBuffers buffers_;
  std::vector<Stream> sends_;
  std::vector<Stream> recvs_;
  std::vector<std::uint32_t> waiting_;  // By action: how many that come first are not complete.
  std::vector<std::uint32_t> ready_;    // Local actions to execute.
  std::vector<std::uint32_t> follows_;  // By action: the next of its stream, or kNone.
  std::vector<const std::byte*> operands_;
  std::size_t left_ = 0;
  bool has_moved_ = false;
  std::array<std::byte, 4096> detour_;  // Not initialized: received into, then copied from.
};

}  // namespace gradring::collectives
