// The control plane's vocabulary: what ranks tell the coordinator and hear from it. On a control
// connection each message is a frame: u32 length, then encode(message). Pure; bounded by limits;
// docs/wire.md has the layout.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/call.h"
#include "base/error.h"
#include "base/link_costs.h"

namespace gradring::wire {

using SessionId = std::array<std::byte, 16>;

// Where a rank can be reached.
struct Member {
  Rank rank = -1;
  std::string tcp_address;      // "10.0.0.3:41822" or "[fe80::1]:41822"
  std::string unix_name;        // Abstract Unix socket, without the leading zero byte.
  std::string host_key;         // Equal keys: shared memory and that Unix socket are within reach.
  std::uint32_t link_mbit = 0;  // What its host may send a second, as it was told; 0: not told.
  std::uint32_t path_us = 0;    // One way between it and rank 0, as rank 0 measures; 0: one host.
  // Which processors of its host it may run on: a hexadecimal digit for each four, the first ones
  // first, and of each the lowest bit: "e1" are 1, 2, 3 and 4. "": not known.
  std::string processors{};
  std::uint64_t control_group = 0;  // What pays for its time on them, by any number.
  std::uint32_t quota_percent = 0;  // How much that one pays for, of a processor; 0: no limit.
};

// One operation a rank is in, or the last it was in.
struct CallState {
  std::uint64_t communicator = 0;
  std::uint64_t seq = 0;
  bool in_progress = false;
  Call call;  // Call{} if it is over, unless this rank waited in it.
  std::uint64_t members_hash = 0;
  std::string made_by;       // The call that named its members, as errors show it; "": none did.
  std::vector<Call> before;  // If in progress: what came before it, seq - 1 first; not all of it.
};
// As many as the root of a broadcast can be ahead in the memory of one host (flat.h).
inline constexpr std::uint32_t kCallsBefore = 31;

// The values are part of the wire format: append, never renumber.
enum class TransportMode : std::uint8_t { kAuto = 0, kShm = 1, kTcp = 2 };
inline constexpr std::size_t kTransportModeCount = 3;
std::string_view name(TransportMode mode);  // "auto", ...: as users write it.

struct Join {  // Follower -> coordinator, first.
  std::uint32_t world_size = 0;
  Member member;
  TransportMode mode = TransportMode::kAuto;
};
struct Welcome {  // Coordinator -> follower, when everybody has joined.
  SessionId session{};
  std::vector<Member> members;
  CostProfile costs;          // What every rank chooses algorithms by.
  std::string meeting_point;  // Of a grown world: where newcomers find its rank 0; else empty.
  std::uint32_t streams = 1;  // Connections that a link between hosts is made of.
};
struct Refused {  // Coordinator -> follower: this join makes no sense.
  std::string text;
  // Or not yet: the coordinator is still in the world that it made before.
  bool may_come_again = false;
};
inline constexpr std::uint32_t kCallsPerHeartbeat = 256;
struct Heartbeat {
  std::vector<CallState> calls;  // More than kCallsPerHeartbeat are not sent.
};
struct Lost {  // Coordinator -> everyone.
  Rank rank = -1;
  bool has_left = false;  // It said goodbye, rather than died.
  std::string text;
};
struct Doubt {  // Rank -> coordinator: `rank` has come to this one, and says that it has lost it.
  Rank rank = -1;
  std::string text;
};
struct Abort {  // Rank -> coordinator -> everyone: a communicator is over, and why.
  std::uint64_t communicator = 0;
  std::uint64_t seq = 0;  // The operation that failed.
  Rank origin = -1;
  Failure failure;
};
struct Left {  // Rank -> coordinator -> members: I close this communicator, in good order.
  std::uint64_t communicator = 0;
  Rank rank = -1;
  std::vector<Rank> members;  // World ranks.
};
struct Bye {};  // Rank -> everyone it has a control connection to: I leave in good order.

// Shrink: the living members of a communicator agree on who is still there. Rank -> coordinator.
struct ShrinkRequest {
  std::uint64_t communicator = 0;
  std::vector<Rank> members;  // World ranks of the communicator, as its creator listed them.
};
struct ShrinkWait {  // Coordinator -> those who have asked, now and then: it is not settled yet.
  std::uint64_t communicator = 0;
  std::uint32_t count = 0;    // How many living members have not asked for it.
  std::vector<Rank> missing;  // The first of them.
};
struct ShrinkReply {  // Coordinator -> every survivor.
  std::uint64_t communicator = 0;
  std::vector<Rank> survivors;
};

// Grow: the coordinator takes in who waits in its lobby, by a new rendezvous.
struct Invitation {  // Coordinator -> newcomer.
  Rank rank = -1;
  std::uint32_t world_size = 0;
  std::uint32_t port = 0;  // Where all meet, on the host at which the newcomer found this one.
  TransportMode mode = TransportMode::kAuto;
  std::string host_key;           // The coordinator's.
  std::uint64_t patience_ms = 0;  // How long ranks wait for each other there.
  std::uint64_t timeout_ms = 0;   // These two as all ranks of the job have them.
  std::uint64_t heartbeat_timeout_ms = 0;
};
struct Grown {  // Coordinator -> newcomer: whether all have met. If not it waits for the next time.
  bool is_done = false;
};

using Message = std::variant<Join, Welcome, Refused, Heartbeat, Lost, Abort, Bye, ShrinkRequest,
                             ShrinkReply, Left, ShrinkWait, Doubt, Invitation, Grown>;

std::vector<std::byte> encode(const Message& message);
// Throws ProtocolError.
Message decode_message(std::span<const std::byte> bytes);

}  // namespace gradring::wire
