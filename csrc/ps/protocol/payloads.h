// What is in the payloads of the parameter server's frames (wire/ps_frames.h), besides ids and
// rows: structs <-> bytes, pure, every length checked. Everything before ids and rows is a multiple
// of eight bytes long, so that those lie aligned.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "ps/tables/spec.h"
#include "wire/bytes.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

struct Hello {
  std::uint32_t client = 0;       // Number of the worker; 2^31 and more: nobody's worker.
  std::uint64_t incarnation = 0;  // See FoundShards.
};
struct Welcome {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::string host_key;   // transport::host_key() of the server.
  std::string unix_name;  // Where it takes shared memory; "" if it does not.
};
// The numbers of kDone.
struct Outcome {
  // Rows whose gradient was not finite. kSetRule: 1: settings that another client gave are in
  // force.
  std::uint64_t refused = 0;
  std::uint64_t not_admitted = 0;  // Rows that were only counted.
  std::uint64_t staleness = 0;     // Pushes to the table between the pull and this push.
  // kClock: the living ones of the domain. kShrink, kTick: rows gone. kSetRule: RuleOrder::number.
  std::uint64_t workers = 0;
  // Bit i % 64 of word i / 64: row i was refused or only counted. Empty: nobody asked, or none was.
  std::vector<std::uint64_t> skipped;

  bool skips(std::size_t row) const {
    return !skipped.empty() && (skipped[row / 64] >> (row % 64) & 1) != 0;
  }
};
inline constexpr std::size_t kOutcomeBytes = 32;  // Without `skipped`.
// What one worker says with kClock.
struct ClockPayload {
  std::uint32_t workers = 1;  // Of the domain: 0 .. workers-1. 0: whoever comes.
  bool is_round = false;
  double weight = 1;  // Of its contributions to the round that ends.
};
// Which of several changes of a table's rule is in force, on every shard: the last one in this
// order, whatever order they come in.
struct RuleOrder {
  std::uint64_t number = 0;  // 0: the rule is what the table was made with.
  std::uint32_t client = 0;  // Whose it is.
  friend auto operator<=>(const RuleOrder&, const RuleOrder&) = default;
};
struct RuleInForce {
  RuleOrder order;
  kernels::Rule rule;
};
// How far a shard has come with one client.
struct Position {
  std::uint32_t client = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t seq = 0;
  wire::Tail tail;  // kFrozen: of its last request. kAdvance: empty.
};

Bytes encode(const Hello& hello);
Hello decode_hello(std::span<const std::byte> bytes);
Bytes encode(const Welcome& welcome);
Welcome decode_welcome(std::span<const std::byte> bytes);
Bytes encode(const std::vector<Position>& positions);
std::vector<Position> decode_positions(std::span<const std::byte> bytes);
Bytes encode_text(const std::string& text);  // The payload is the text, of any length.
std::string decode_text(std::span<const std::byte> bytes);

// Appended one after the other to a payload that is being built.
void put(Bytes& out, const wire::Tail& tail);
void put(Bytes& out, const wire::Gate& gate);
void put(Bytes& out, const wire::Round& round);
void put(Bytes& out, const Outcome& outcome);
void put(Bytes& out, const ClockPayload& clock);
void put(Bytes& out, const TableSpec& spec);
void put(Bytes& out, const kernels::Rule& rule);
void put(Bytes& out, const RuleInForce& in_force);
void put_bytes(Bytes& out, std::span<const std::byte> bytes);

wire::Tail get_tail(wire::Reader& in);
wire::Gate get_gate(wire::Reader& in);
wire::Round get_round(wire::Reader& in);
Outcome get_outcome(wire::Reader& in);  // Without `skipped`.
// `rows`: of the push.
std::vector<std::uint64_t> get_skipped(wire::Reader& in, std::size_t rows);
ClockPayload get_clock(wire::Reader& in);
TableSpec get_spec(wire::Reader& in);
kernels::Rule get_rule(wire::Reader& in);
RuleInForce get_rule_in_force(wire::Reader& in);
// What a snapshot has of a table: its spec, and behind it, if it was changed, the rule in force and
// which of the changes that is.
struct SavedSpec {
  TableSpec made;
  kernels::Rule rule;
  RuleOrder order;
};
void put(Bytes& out, const SavedSpec& saved);
SavedSpec get_saved_spec(wire::Reader& in);

}  // namespace gradring::ps
