#include "wire/ps_frames.h"

#include <cstring>

#include "base/config.h"

namespace gradring::wire {
namespace {

constexpr std::uint32_t kFrameMagic = 0x53505247;  // "GRPS"
constexpr std::uint8_t kFrameVersion = 1;

// The layout on the wire. Little-endian, no padding (asserted).
struct RawFrame {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t type;
  std::uint8_t flags;
  std::uint8_t codec;
  std::uint32_t count;
  std::uint32_t layout;
  std::uint64_t request;
  std::uint64_t seq;
  std::uint64_t table;
  std::uint64_t a;
  std::uint64_t b;
  std::uint64_t payload_bytes;
};
static_assert(sizeof(RawFrame) == kPsHeaderBytes);

bool is_known_type(std::uint8_t type) {
  return type <= kLastPsRequest || (type >= static_cast<std::uint8_t>(PsType::kWelcome) &&
                                    type <= static_cast<std::uint8_t>(PsType::kError));
}

}  // namespace

std::string_view name(PsType type) {
  constexpr std::string_view kRequests[] = {
      "hello", "make_table", "pull", "pull",   "pull_changed", "push",    "push",   "write",
      "clock", "leave",      "tick", "shrink", "read",         "stats",   "freeze", "advance",
      "cut",   "thaw",       "load", "job",    "goodbye",      "set_rule"};
  static_assert(std::size(kRequests) == kLastPsRequest + 1);
  const auto raw = static_cast<std::size_t>(type);
  return raw <= kLastPsRequest ? kRequests[raw] : "answer";
}

bool is_numbered(PsType type) {
  switch (type) {
    case PsType::kMakeTable:
    case PsType::kSetRule:
    case PsType::kPush:
    case PsType::kPushDense:
    case PsType::kWriteRows:
    case PsType::kClock:
    case PsType::kLeave:
    case PsType::kTick:
    case PsType::kShrink: return true;
    default: return false;
  }
}

PsHeaderBytes encode(const PsHeader& header) {
  RawFrame raw{};
  raw.magic = kFrameMagic;
  raw.version = kFrameVersion;
  raw.type = static_cast<std::uint8_t>(header.type);
  raw.flags = header.flags;
  raw.codec = static_cast<std::uint8_t>(header.codec);
  raw.count = header.count;
  raw.layout = header.layout;
  raw.request = header.request;
  raw.seq = header.seq;
  raw.table = header.table;
  raw.a = header.a;
  raw.b = header.b;
  raw.payload_bytes = header.payload_bytes;
  PsHeaderBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

PsHeader decode_ps_header(std::span<const std::byte, kPsHeaderBytes> bytes) {
  RawFrame raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kFrameMagic)
    throw ProtocolError(str("frame: wrong magic 0x", std::hex, raw.magic));
  if (raw.version != kFrameVersion)
    throw ProtocolError(
        str("frame: version ", int{raw.version}, ", this build speaks ", int{kFrameVersion}));
  if (!is_known_type(raw.type)) throw ProtocolError(str("frame: unknown type ", int{raw.type}));
  if (raw.codec >= kRowCodecCount)
    throw ProtocolError(str("frame: unknown row codec ", int{raw.codec}));
  if (raw.payload_bytes > limits::kPsPayloadBytes)
    throw ProtocolError(str("frame: a payload of ", raw.payload_bytes,
                            " bytes is over the limit of ", limits::kPsPayloadBytes));
  PsHeader header;
  header.type = static_cast<PsType>(raw.type);
  header.flags = raw.flags;
  header.codec = static_cast<RowCodec>(raw.codec);
  header.count = raw.count;
  header.layout = raw.layout;
  header.request = raw.request;
  header.seq = raw.seq;
  header.table = raw.table;
  header.a = raw.a;
  header.b = raw.b;
  header.payload_bytes = raw.payload_bytes;
  return header;
}

}  // namespace gradring::wire
