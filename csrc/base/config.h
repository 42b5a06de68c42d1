// Every limit of the core in one place, with its reason. What users set (timeouts, transport,
// interface) comes in Options.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gradring::limits {

// A frame on a control connection: the largest is the welcome, about 100 bytes a rank.
inline constexpr std::size_t kControlFrameBytes = std::size_t{4} << 20;
inline constexpr std::uint32_t kWorldSize = 1u << 14;
inline constexpr std::size_t kRecordBytes = std::size_t{256} << 20;  // A rank's record, asked for.
inline constexpr std::size_t kTextBytes = 4096;                      // Any string on the wire.

// Strangers: connections that have not proved themselves yet. When one more comes, the oldest goes.
inline constexpr std::size_t kHandshakesPending = 256;
inline constexpr Millis kHandshakeTime{5000};

// Who has proved itself and waits until the ranks of a job grow their communicator: a descriptor
// each.
inline constexpr std::size_t kNewcomers = 256;
// Of a timeout, in milliseconds, that another process tells: the longest that users can give.
inline constexpr std::uint64_t kLongestMillis = 1'000'000'000'000;

// Messages received before anybody asked for them, per peer; a sender that is further ahead waits.
inline constexpr std::size_t kUnexpectedBytes = std::size_t{64} << 20;

inline constexpr std::size_t kCommunicators = 4096;  // Per world.
inline constexpr std::size_t kQueuedWorks =
    1u << 16;  // Asynchronous operations waiting in one communicator.

// The parameter server. A frame's payload: a dense table's part on one shard, at the most.
inline constexpr std::size_t kPsPayloadBytes = std::size_t{1} << 31;
// Of what one worker gives to one table in one round, on one shard: it is one piece of a
// checkpoint, and what is around it in there has to fit as well.
inline constexpr std::size_t kPsContributionBytes = kPsPayloadBytes - (std::size_t{16} << 10);
inline constexpr std::uint32_t kPsShards = 1024;
inline constexpr std::uint32_t kPsDim = 1u << 16;
inline constexpr std::size_t kPsTables = 4096;       // Per shard.
inline constexpr std::size_t kPsClients = 1u << 14;  // Per shard.
inline constexpr std::size_t kPsDomains = 1024;      // Per shard.
// Larger pushes and pulls are cut into parts, so that client, wire and table work at once.
inline constexpr std::size_t kPsPartBytes = std::size_t{512} << 10;
// What the client makes of that: rows of one answer, and of one push. Small, for the second-level
// cache, and so that the next one is on its way meanwhile.
inline constexpr std::size_t kPsAnswerPartBytes = std::size_t{256} << 10;
inline constexpr std::size_t kPsPushPartBytes = std::size_t{256} << 10;
// Under way to one shard and not answered; one request may be larger.
inline constexpr std::size_t kPsFlightBytes = std::size_t{8} << 20;
inline constexpr std::size_t kPsFlightRequests = 256;
// Arrays of a client's asynchronous calls that are not done: the next one waits for room, also
// where servers are so slow that what a worker makes would fill its memory. One call may be larger.
inline constexpr std::uint64_t kPsStartedBytes = std::uint64_t{1} << 30;
// Rows of one pull's answer. Our clients ask for kPsAnswerPartBytes, or one row if that is longer;
// whoever asks for more than this wants to take the server's memory.
inline constexpr std::size_t kPsRowsBytes = std::size_t{64} << 20;
// Answers waiting to be taken by one client: while there are more, nothing is read from it.
inline constexpr std::size_t kPsAnswerBytes = std::size_t{4} << 20;
// Memory of done payloads that a shard keeps for the next ones: a busy client's, both ways.
inline constexpr std::size_t kPsSpareBytes = std::size_t{4} << 20;
// Outcomes that are kept per client, to answer a repeated request as the first time: failures, and
// small answers with rows. As many of each as one client may have under way.
inline constexpr std::size_t kPsOutcomes = 256;
inline constexpr std::size_t kPsSmallAnswerBytes = 256;
// Requests of one connection that wait for the end of a freeze, or for a gate; then nothing more is
// read from it. Not less than its client may have under way: it may not wait for what it sends
// next.
inline constexpr std::size_t kPsHeldBytes = std::size_t{8} << 20;
// A client's host that is not heard of for so long has died; its connection ends.
inline constexpr Millis kPsSilence{20000};

// Connections of one link between two hosts, where users ask for several: a few descriptors of
// each.
inline constexpr std::uint32_t kStreams = 32;

// Shared memory between two ranks: one ring each way.
inline constexpr std::size_t kRingBytes = std::size_t{1} << 20;

// Waiting (cpu_limits: yield about 50 us, then sleep in the kernel). A sleep is cut into slices so
// that signals, failures and deadlines are seen even if a wake-up is lost.
// With a core for every rank of this host, the other end mostly answers within these looks, and a
// yield would hand the core to a stranger (measured: 12-20 us instead of 22-28 over TCP).
inline constexpr int kLooksBeforeYield = 50;
inline constexpr int kYieldsBeforeSleep = 1000;
inline constexpr Millis kSleepSlice{50};
// After so long that some ranks wait for others in an operation, somebody is told for whom.
inline constexpr Millis kStallTime{60'000};

// Socket buffers asked for on data connections (the kernel may give less).
inline constexpr int kSocketBufferBytes = 4 << 20;

// TLS: what one system call brings (four whole records), and how many records one key encrypts:
// fewer than the 2^24.5 that AES-GCM is good for (RFC 8446, 5.5).
inline constexpr std::size_t kTlsReadBytes = 66'600;
inline constexpr std::uint64_t kTlsRecordsPerKey = std::uint64_t{1} << 23;

}  // namespace gradring::limits
