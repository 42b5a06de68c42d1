#include "ps/log/snapshot.h"

#include <cstring>

#include "base/config.h"
#include "base/crc32c.h"
#include "wire/bytes.h"

namespace gradring::ps {
namespace {

constexpr std::uint32_t kMagic = 0x4b4c4247;              // "GBLK"
constexpr std::uint64_t kFileMagic = 0x32535052'4447ull;  // "GDRPS2", the header's first bytes.

// The layout in the file. Little-endian, no padding (asserted).
struct Raw {
  std::uint32_t magic;
  std::uint32_t kind;
  std::uint64_t reserved;
  std::uint64_t payload_bytes;
  std::uint32_t payload_crc;  // Of the payload with the zeros that fill it up.
  std::uint32_t header_crc;   // Of everything above.
};
static_assert(sizeof(Raw) == kBlockHeaderBytes);
constexpr std::size_t kSealedBytes = offsetof(Raw, header_crc);

Raw load(std::span<const std::byte> bytes) {
  Raw raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  return raw;
}
void store(const Raw& raw, std::byte* to) {
  std::memcpy(to, &raw, sizeof raw);
}

std::size_t padded(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + 7) / 8 * 8);
}

std::uint32_t crc_of(const Raw& raw) {
  return crc32c(std::as_bytes(std::span(&raw, 1)).first(kSealedBytes));
}

// What can be known to be wrong with a block's header without its checksum, or "".
std::string wrong_with(const Raw& raw) {
  if (raw.magic != kMagic) return str("no block begins here (magic 0x", std::hex, raw.magic, ")");
  if (raw.kind == 0 || raw.kind > kLastBlockKind) return str("unknown kind of block ", raw.kind);
  if (raw.payload_bytes > limits::kPsPayloadBytes)
    return str("a block of ", raw.payload_bytes, " bytes is over the limit of ",
               limits::kPsPayloadBytes);
  return "";
}

void require_sane(const Raw& raw) {
  const std::string wrong = wrong_with(raw);
  if (!wrong.empty()) throw ProtocolError(wrong);
}

void add(Totals& totals, std::span<const std::byte> head, std::size_t whole_bytes) {
  ++totals.blocks;
  totals.bytes += whole_bytes;
  totals.crc = crc32c(head.first(kBlockHeaderBytes), totals.crc);
}

// The checksum of a file that a block with this head is added to: its payload's is in there.
std::uint32_t with_block(std::uint32_t file_crc, std::span<const std::byte> head,
                         std::size_t whole_bytes) {
  return crc32c_joined(crc32c(head.first(kBlockHeaderBytes), file_crc), load(head).payload_crc,
                       whole_bytes - kBlockHeaderBytes);
}

}  // namespace

std::size_t open_block(Bytes& out, BlockKind kind) {
  const std::size_t opened = out.size();
  out.resize(opened + kBlockHeaderBytes);
  store({kMagic, static_cast<std::uint32_t>(kind), 0, 0, 0, 0}, out.data() + opened);
  return opened;
}

void close_block(Bytes& out, std::size_t opened) {
  Raw raw = load(std::span(out).subspan(opened));
  raw.payload_bytes = out.size() - opened - kBlockHeaderBytes;
  require_sane(raw);
  store(raw, out.data() + opened);
  out.insert(out.end(), padded(raw.payload_bytes) - raw.payload_bytes, std::byte{0});
}

void put_block(Bytes& out, BlockKind kind, std::span<const std::byte> payload) {
  const std::size_t opened = open_block(out, kind);
  out.insert(out.end(), payload.begin(), payload.end());
  close_block(out, opened);
}

void put_header(Bytes& out, const SnapshotHeader& header) {
  wire::Writer payload;
  payload.put(kFileMagic);
  payload.put(header.shard);
  payload.put(header.shards);
  payload.put(header.cut);
  payload.put(header.base);
  put_block(out, BlockKind::kHeader, payload.take());
}

SnapshotHeader decode_snapshot_header(std::span<const std::byte> payload) {
  wire::Reader in(payload);
  const auto magic = in.get<std::uint64_t>();
  if (magic != kFileMagic)
    throw ProtocolError("this is no snapshot that this version of gradring can read");
  SnapshotHeader header;
  header.shard = in.get<std::uint32_t>();
  header.shards = in.get<std::uint32_t>();
  header.cut = in.get<std::uint64_t>();
  header.base = in.get<std::uint64_t>();
  in.finish();
  if (header.shards == 0 || header.shards > limits::kPsShards || header.shard >= header.shards)
    throw ProtocolError(
        str("a snapshot of shard ", header.shard, " of ", header.shards, ", which cannot be"));
  return header;
}

bool next_block(std::span<const std::byte>& blocks, Block& block) {
  if (blocks.empty()) return false;
  if (blocks.size() < kBlockHeaderBytes) throw ProtocolError("a block's header is cut short");
  const Raw raw = load(blocks);
  require_sane(raw);
  const std::size_t whole = kBlockHeaderBytes + padded(raw.payload_bytes);
  if (blocks.size() < whole)
    throw ProtocolError(
        str("a block of ", whole, " bytes is cut short after ", blocks.size(), " bytes"));
  block.kind = static_cast<BlockKind>(raw.kind);
  block.payload = blocks.subspan(kBlockHeaderBytes, static_cast<std::size_t>(raw.payload_bytes));
  blocks = blocks.subspan(whole);
  return true;
}

std::size_t whole_blocks(std::span<const std::byte> bytes, std::size_t& needed) {
  std::size_t at = 0;
  while (bytes.size() - at >= kBlockHeaderBytes) {
    const Raw raw = load(bytes.subspan(at));
    require_sane(raw);
    if (raw.header_crc != crc_of(raw)) throw ProtocolError("a block's header is damaged");
    const std::size_t whole = kBlockHeaderBytes + padded(raw.payload_bytes);
    if (bytes.size() - at < whole) {
      needed = whole;
      return at;
    }
    at += whole;
  }
  needed = kBlockHeaderBytes;
  return at;
}

void Sealer::add(std::span<const std::byte> head, std::size_t whole_bytes) {
  ps::add(totals_, head, whole_bytes);
  file_crc_ = with_block(file_crc_, head, whole_bytes);
}

template <typename ChecksumOf>
void Sealer::seal_all(std::span<std::byte> blocks, ChecksumOf&& checksum_of) {
  std::span<const std::byte> rest = blocks;
  Block block;
  while (!rest.empty()) {
    std::byte* const begin = blocks.data() + (blocks.size() - rest.size());
    const std::size_t before = rest.size();
    next_block(rest, block);
    const std::size_t whole = before - rest.size();
    Raw raw = load({begin, whole});
    raw.payload_crc = checksum_of(std::span(begin, whole).subspan(kBlockHeaderBytes));
    raw.header_crc = crc_of(raw);
    store(raw, begin);
    add({begin, kBlockHeaderBytes}, whole);
  }
}

void Sealer::seal(std::span<std::byte> blocks) {
  seal_all(blocks, [](std::span<const std::byte> payload) { return crc32c(payload); });
}

void Sealer::seal(SnapshotBytes& blocks, std::size_t begin) {
  seal_all(std::span(blocks.all()).subspan(begin), [&](std::span<const std::byte> payload) {
    const auto at = static_cast<std::size_t>(payload.data() - blocks.data());
    return blocks.checksum(at, at + payload.size());
  });
}

void Sealer::seal_piece(std::span<const std::byte> piece, std::vector<std::byte>& head,
                        std::vector<std::byte>& fill) {
  fill.assign(padded(piece.size()) - piece.size(), std::byte{0});
  Raw raw{kMagic, static_cast<std::uint32_t>(BlockKind::kPiece), 0, piece.size(), 0, 0};
  require_sane(raw);
  raw.payload_crc = crc32c(fill, crc32c(piece));
  raw.header_crc = crc_of(raw);
  head.resize(kBlockHeaderBytes);
  store(raw, head.data());
  add(head, head.size() + piece.size() + fill.size());
}

void Sealer::finish(Bytes& out) {
  wire::Writer payload;
  payload.put(totals_.blocks);
  payload.put(totals_.bytes);
  payload.put(totals_.crc);
  const std::size_t begin = out.size();
  put_block(out, BlockKind::kFooter, payload.take());
  seal(std::span(out).subspan(begin));
}

void Checker::check(std::span<const std::byte> blocks) {
  Block block;
  while (!blocks.empty()) {
    const std::span<const std::byte> begin = blocks;
    try {
      next_block(blocks, block);
      check_block(begin.first(begin.size() - blocks.size()), block);
    } catch (const ProtocolError& error) {
      throw ProtocolError(str("damaged at byte ", at_, ": ", error.what()));
    }
  }
}

void Checker::check_block(std::span<const std::byte> whole, const Block& block) {
  const Raw raw = load(whole);
  if (raw.header_crc != crc_of(raw)) throw ProtocolError("a block's header is damaged");
  if (raw.payload_crc != crc32c(whole.subspan(kBlockHeaderBytes)))
    throw ProtocolError(str("the checksum of a block of ", raw.payload_bytes, " bytes is wrong"));
  if (is_finished_) throw ProtocolError("there is a block behind the footer");
  if ((block.kind == BlockKind::kHeader) != (totals_.blocks == 0))
    throw ProtocolError("the header is not where it belongs, at the beginning");
  if (block.kind == BlockKind::kHeader) header_ = decode_snapshot_header(block.payload);
  if (block.kind == BlockKind::kFooter) {
    wire::Reader in(block.payload);
    Totals said;
    said.blocks = in.get<std::uint64_t>();
    said.bytes = in.get<std::uint64_t>();
    said.crc = in.get<std::uint32_t>();
    in.finish();
    if (said != totals_)
      throw ProtocolError(str("blocks are missing or doubled: the footer counts ", said.blocks,
                              " with ", said.bytes, " bytes, there are ", totals_.blocks, " with ",
                              totals_.bytes));
    is_finished_ = true;
  }
  add(totals_, whole, whole.size());
  file_crc_ = with_block(file_crc_, whole, whole.size());
  at_ += whole.size();
}

void Checker::finish() const {
  if (!is_finished_)
    throw ProtocolError(str("cut short: it ends after ", at_, " bytes without a footer"));
}

}  // namespace gradring::ps
