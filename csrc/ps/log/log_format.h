// The bytes of a log's segment (docs/checkpoints.md): a header, then batches, each of whole
// records. One batch is one write, so that only the last one can be torn. For log.cc and
// log_reader.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/crc32c.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

inline constexpr std::uint64_t kSegmentMagic = 0x31474f4c52474447;  // "GDGRLOG1"
inline constexpr std::uint32_t kBatchMagic = 0x48435442;            // "BTCH"
inline constexpr std::uint32_t kLogVersion = 1;

// Little-endian, no padding (asserted). Each `crc` is of everything before it.
struct RawSegment {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t shard;
  std::uint32_t shards;
  std::uint32_t reserved;
  std::uint64_t segment;
  std::uint64_t first_record;  // Counted over all segments, from 0.
  std::uint64_t nonce;         // Random: batches of another file are not taken for ours.
  std::uint64_t reserved2;
  std::uint32_t reserved3;
  std::uint32_t crc;
};
static_assert(sizeof(RawSegment) == 64);

struct RawBatch {
  std::uint32_t magic;
  std::uint32_t records;
  std::uint64_t nonce;
  std::uint64_t first_record;
  // Bytes of this file that were as durable as the policy promises when this batch was written:
  // what is wrong below them is damage, never a torn write.
  std::uint64_t vouched;
  std::uint64_t body_bytes;
  std::uint32_t body_crc;
  std::uint32_t crc;
};
static_assert(sizeof(RawBatch) == 48);

// Then the frame's payload, filled up with zeros to a multiple of eight.
struct RawRecord {
  wire::PsHeaderBytes header;
  std::uint64_t incarnation;
  std::uint32_t client;
  std::uint32_t reserved;
};
static_assert(sizeof(RawRecord) == 80);

template <typename Raw>
std::span<const std::byte> raw_bytes(const Raw& raw) {
  static_assert(std::is_trivially_copyable_v<Raw>);
  return std::as_bytes(std::span(&raw, 1));
}
template <typename Raw>
std::uint32_t own_crc(const Raw& raw) {
  return crc32c(raw_bytes(raw).first(offsetof(Raw, crc)));
}

}  // namespace gradring::ps
