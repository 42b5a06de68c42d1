// Frames between a client of the parameter server and a shard: a header of 64 bytes and a payload.
// Pure: structs <-> bytes; every length is checked before memory is taken (docs/wire.md).
//
// A client numbers the requests that change something (kMakeTable, kSetRule, kPush, kPushDense,
// kWriteRows, kClock, kTick, kShrink, kLeave) from 1 for each shard: `seq`. A shard does them in
// that order, each once: what it has done already is answered again, what comes too early is
// answered with kOutOfOrder. In all other requests `seq` is the last number that must have been
// done before (reading one's own writes).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace gradring::wire {

// What payloads are made of, little-endian and without gaps (docs/wire.md has the header; a table's
// spec, its rule and the metas are in docs/checkpoints.md):
//   tail       count u64, count x seq u64
//   gate       domain u64, clock u64, wait_ms u32, is_round u32
//   round      domain u64, clock u64
//   spec, rule filled up with zeros to a multiple of 8
//   positions  count u32, count x (client u32, incarnation u64, seq u64, and a tail with its count
//              as u32)
//   stamps     count u32, count x (table u64, stamp u64)
//   numbers    refused u64, not_admitted u64, staleness u64, workers u64 (kTick, kShrink: rows
//              gone; kSetRule: number of the change in force, and refused 1 if that has other
//              settings than this one); with kTellsSkipped its bits
//   rows       by the header's codec; so are floats, but for those of metas and states: float32
//   name       bytes u32, so many bytes
//   text       all the rest of the payload
// The values are part of the wire format and of logs: append, never renumber.
enum class PsType : std::uint8_t {
  // Requests.                     a, b, count; payload
  kHello = 0,        // -; client u32, incarnation u64
  kMakeTable = 1,    // a: kNoMemory, in a log only; [tail] spec
  kPull = 2,         // b: 1 = versions too; count ids; [gate] ids
  kPullDense = 3,    // a: answer only if the stamp differs (0: always); [gate]
  kPullChanged = 4,  // a: since this stamp, b: at most so many rows; -
  kPush = 5,         // a: pushes seen, b: number of the push; count ids; [tail] [round] ids rows
  kPushDense = 6,    // the same, count floats; [tail] [round] floats
  kWriteRows = 7,    // a: steps of the table (kTellsSteps), count rows; [tail] metas floats
                     // (dense: count floats; [tail] steps u64, weights, state or none)
  kClock = 8,        // a: domain, b: clock; [tail] workers u32, is_round u32, weight f64
  kLeave = 9,        // a: domain (0: all); [tail]
  kTick = 10,        // a: tick (table 0: of all); [tail]
  kShrink = 11,      // a: unseen ticks (table 0: of all); [tail] least score f32
  kReadRows = 12,    // a: cursor, at first 0, b: at most so many rows; -   (dense: all of it)
  kStats = 13,       // -
  kFreeze = 14,      // a: cut, b: milliseconds after which it melts by itself
  kAdvance = 15,     // a: cut, b: milliseconds after which it is answered with who is missing;
                     // positions, their tails empty
  kCut = 16,         // a: cut; stamps, of the base; job text
  kThaw = 17,        // a: cut, or a load that is given up
  kLoad = 18,        // a: cut; job text
  kJob = 19,         // a: cut: answered when the shard's part of kCut or kLoad is done
  kGoodbye = 20,
  kSetRule = 21,  // a: number of the change (0: none, whatever is in force), b: 0, or the number
                  // of the client whose change is repeated, plus 1; [tail] rule
  // Answers.
  kWelcome = 32,     // a: server's incarnation, b: last seq done (on a card: its clock, ns, and
                     // count: shards here, seq: cut of the checkpoint it began with, or 0; where
                     // it is comes as a kText); shard u32, shards u32, host key name, Unix socket
                     // name
  kDone = 33,        // a: pushes of the table, b: its stamp; numbers [rows]. To kMakeTable:
                     // numbers, and the first time number of the rule in force u64, whose it is
                     // u64, rule. To kCut: stamps. To kThaw, kLoad, kGoodbye: -
  kRows = 34,        // a: pushes of the table, b: its stamp; count rows; rows [versions, u32 each]
  kDense = 35,       // the same, count floats; floats. Nothing of both: the stamp is that of `a`
  kChanged = 36,     // a: ask with this next, b: 1 = there are more; count ids; ids rows
  kWholeRows = 37,   // a: next cursor, b: 1 = there are more, seq: lineage (of another one no
                     // cursor is of use any more); count rows; metas floats
                     // (kIsDense: count floats; steps u64, weights, state)
  kText = 38,        // text (to kAdvance: who is missing, to kJob: what came of it)
  kFrozen = 39,      // b: lineage, as of kWholeRows; positions
  kOutOfOrder = 40,  // b: last seq done
  kError = 41,       // a: ErrorKind, b: rank; text
};
inline constexpr std::uint8_t kLastPsRequest = 21;
std::string_view name(PsType type);  // "push", "pull", ...: as errors say it.
bool is_numbered(PsType type);       // Changes something: carries a seq of its own.

// What rows look like on the wire. The values are kernels::CodecKind + 1.
enum class RowCodec : std::uint8_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kInt8 = 3 };
inline constexpr std::uint8_t kRowCodecCount = 4;

// Bits of PsHeader::flags.
inline constexpr std::uint8_t kHasGate = 1;
inline constexpr std::uint8_t kHasRound = 2;     // A contribution to a round of a domain.
inline constexpr std::uint8_t kReturnsRows = 4;  // The answer has the rows as they are afterwards.
inline constexpr std::uint8_t kIsDense = 8;      // kWriteRows, kReadRows.
inline constexpr std::uint8_t kIsLastPart = 16;  // Of a push, on this shard.
// A push: tell which rows were not done. Its answer: behind the numbers there are as many bits as
// the push had rows, in words of 64; 1: refused, or counted only.
inline constexpr std::uint8_t kTellsSkipped = 32;
// kWriteRows: `a` is told, 0 too. Without it 0 leaves them as they are.
inline constexpr std::uint8_t kTellsSteps = 64;

// kPush, kPushDense, kWriteRows of a log: there was no memory for its rows, of which there were
// `a`, so it was refused; its payload is the tail alone.
inline constexpr std::uint8_t kFoundNoMemory = 128;

// PsHeader::a of a log's kMakeTable: there was no memory for the table, so it was refused.
inline constexpr std::uint64_t kNoMemory = 1;

struct PsHeader {
  PsType type = PsType::kHello;
  std::uint8_t flags = 0;
  RowCodec codec = RowCodec::kFloat32;
  std::uint32_t count = 0;
  // Of the table as the sender knows it (ps/tables/spec.h); 0: it says nothing.
  std::uint32_t layout = 0;
  std::uint64_t request = 0;  // The client's; answers repeat it.
  std::uint64_t seq = 0;
  std::uint64_t table = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t payload_bytes = 0;
};
inline constexpr std::size_t kPsHeaderBytes = 64;
using PsHeaderBytes = std::array<std::byte, kPsHeaderBytes>;

PsHeaderBytes encode(const PsHeader& header);
// Throws ProtocolError on a wrong magic, version, enum or a payload over limits::kPsPayloadBytes.
PsHeader decode_ps_header(std::span<const std::byte, kPsHeaderBytes> bytes);

// For each shard the seq of this client's last request of the call (a push, a clock, ...) that this
// one belongs to, or of any call before it: when this one is done, so must those be, in any
// consistent cut.
using Tail = std::vector<std::uint64_t>;

// A pull that waits: until every living worker of the domain has come to `clock`, or (is_round) the
// domain's rounds before `clock` are applied.
struct Gate {
  std::uint64_t domain = 0;
  std::uint64_t clock = 0;
  std::uint32_t wait_ms = 0;  // Then it is answered with TimedOut that names who is missing.
  bool is_round = false;
};

// The round that a push contributes to.
struct Round {
  std::uint64_t domain = 0;
  std::uint64_t clock = 0;
};

}  // namespace gradring::wire
