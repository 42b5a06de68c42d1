#include "wire/op_header.h"

#include <cstring>

#include "base/error.h"
#include "wire/bytes.h"

namespace gradring::wire {
namespace {

constexpr std::uint32_t kOpMagic = 0x504f5247;  // "GROP"
constexpr std::uint8_t kOpVersion = 1;

// The layout on the wire. Little-endian, no padding (asserted), trailing zeros reserved.
struct RawHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduce_op;
  std::uint64_t seq;
  std::uint64_t count;
  std::uint64_t counts_hash;
  std::uint64_t bytes;
  std::int32_t root;
  std::int32_t tag;
  std::uint8_t algorithm;
  std::uint8_t reserved[15];
};
static_assert(sizeof(RawHeader) == kOpHeaderBytes);

template <typename Enum>
Enum checked(std::uint8_t raw, std::size_t count, const char* what) {
  if (raw >= count) throw ProtocolError(str("op header: unknown ", what, " ", int{raw}));
  return static_cast<Enum>(raw);
}

}  // namespace

OpHeaderBytes encode(const OpHeader& header) {
  RawHeader raw{};
  raw.magic = kOpMagic;
  raw.version = kOpVersion;
  raw.op = static_cast<std::uint8_t>(header.call.op);
  raw.dtype = static_cast<std::uint8_t>(header.call.dtype);
  raw.reduce_op = static_cast<std::uint8_t>(header.call.reduce_op);
  raw.seq = header.seq;
  raw.count = header.call.count;
  raw.counts_hash = header.call.counts_hash;
  raw.bytes = header.bytes;
  raw.root = header.call.root;
  raw.tag = header.tag;
  raw.algorithm = header.call.algorithm;
  OpHeaderBytes bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  return bytes;
}

OpHeader decode_op_header(std::span<const std::byte, kOpHeaderBytes> bytes) {
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kOpMagic)
    throw ProtocolError(str("op header: wrong magic 0x", std::hex, raw.magic));
  if (raw.version != kOpVersion)
    throw ProtocolError(
        str("op header: version ", int{raw.version}, ", this build speaks ", int{kOpVersion}));
  OpHeader header;
  header.call.op = checked<OpKind>(raw.op, kOpKindCount, "operation");
  header.call.dtype = checked<DType>(raw.dtype, kDTypeCount, "dtype");
  header.call.reduce_op = checked<ReduceOp>(raw.reduce_op, kReduceOpCount, "reduce op");
  header.call.algorithm = raw.algorithm;
  header.call.root = raw.root;
  header.call.count = raw.count;
  header.call.counts_hash = raw.counts_hash;
  header.seq = raw.seq;
  header.tag = raw.tag;
  header.bytes = raw.bytes;
  return header;
}

}  // namespace gradring::wire
