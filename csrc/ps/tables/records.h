// The records that tables' snapshots are made of: a head of 24 bytes and a body, little-endian
// (docs/tables.md). Pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace gradring::ps {

static_assert(std::endian::native == std::endian::little, "big-endian hosts need swaps");

// The values are part of the format: append, never renumber.
enum class TableRecordKind : std::uint8_t {
  kSparse = 1,      // What holds for the whole table: SparseHead.
  kRows = 2,        // `count` RowMetas, then as many times `floats` floats.
  kGone = 3,        // `count` ids that are no rows any more.
  kCandidates = 4,  // `count` times id u64, pushes u32, tick u32: ids that are no rows yet.
  kDense = 5,       // DenseHead, then its floats.
};
inline constexpr std::uint8_t kRecordVersion = 1;
// No table has lived through more changes: a larger one was damaged.
inline constexpr std::uint64_t kLargestStamp = std::uint64_t{1} << 62;

struct RecordHead {
  std::uint8_t version = kRecordVersion;
  TableRecordKind kind = TableRecordKind::kSparse;
  std::uint16_t reserved = 0;
  std::uint32_t count = 0;
  std::uint32_t floats = 0;  // A row's.
  std::uint32_t reserved_too = 0;
  std::uint64_t body_bytes = 0;
};
static_assert(sizeof(RecordHead) == 24);

struct TableRecord {
  RecordHead head;
  std::span<const std::byte> body;
};

// Appends a record and returns where its body is to be written.
inline std::byte* append_record(std::vector<std::byte>& out, TableRecordKind kind,
                                std::uint32_t count, std::uint32_t floats, std::size_t body_bytes) {
  const RecordHead head{.kind = kind, .count = count, .floats = floats, .body_bytes = body_bytes};
  const std::size_t at = out.size();
  out.resize(at + sizeof head + body_bytes);
  std::memcpy(out.data() + at, &head, sizeof head);
  return out.data() + at + sizeof head;
}

// Takes one record off the front of `rest`. Throws ProtocolError if there is none in it whole.
inline TableRecord take_record(std::span<const std::byte>& rest) {
  TableRecord record;
  if (rest.size() < sizeof record.head)
    throw ProtocolError(
        str("a snapshot's record ends within its head, after ", rest.size(), " bytes"));
  std::memcpy(&record.head, rest.data(), sizeof record.head);
  const RecordHead& head = record.head;
  if (head.version != kRecordVersion)
    throw ProtocolError(str("a snapshot's record has version ", int{head.version}, ", known is ",
                            int{kRecordVersion}));
  if (head.reserved != 0 || head.reserved_too != 0)
    throw ProtocolError("a snapshot's record has something where there should be zeros");
  rest = rest.subspan(sizeof record.head);
  if (head.body_bytes > rest.size())
    throw ProtocolError(
        str("a snapshot's record ends ", head.body_bytes - rest.size(), " bytes too early"));
  record.body = rest.first(head.body_bytes);
  rest = rest.subspan(head.body_bytes);
  return record;
}

// The body must be `count` items of this size. Both factors are below 2^32, or nearly.
inline void require_items(const TableRecord& record, std::uint64_t item_bytes) {
  if (record.head.body_bytes != record.head.count * item_bytes)
    throw ProtocolError(str("a snapshot's record of ", record.head.count, " items of ", item_bytes,
                            " bytes has ", record.head.body_bytes, " bytes"));
}

template <typename T>
T item_at(std::span<const std::byte> body, std::size_t index) {
  static_assert(std::is_trivially_copyable_v<T>);
  T item;
  std::memcpy(&item, body.data() + index * sizeof(T), sizeof(T));
  return item;
}

}  // namespace gradring::ps
