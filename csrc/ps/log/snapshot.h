// How a shard's snapshot lies in a file: that of a checkpoint, or the local one beside a log
// (docs/checkpoints.md). A sequence of blocks with checksums: a header, the pieces that
// Shard::next_snapshot_piece made, and a footer with totals, so that a file that lacks anything is
// known for it. Pure.
//
// Blocks are made without checksums; a Sealer adds those and the footer. Whoever reads checks first
// (Checker).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "ps/tables/snapshot_bytes.h"

namespace gradring::ps {

// The values are part of the file format: append, never renumber.
enum class BlockKind : std::uint32_t {
  kHeader = 1,  // SnapshotHeader.
  kPiece = 2,   // Whole records of the shard.
  kFooter = 3,  // Only the Sealer makes it.
};
inline constexpr std::uint32_t kLastBlockKind = 3;

struct SnapshotHeader {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::uint64_t cut = 0;
  std::uint64_t base = 0;  // Holds only what changed since that cut; 0: everything.
  friend bool operator==(const SnapshotHeader&, const SnapshotHeader&) = default;
};

inline constexpr std::size_t kBlockHeaderBytes = 32;
// Blocks begin at multiples of eight: zeros fill up the payload, its length does not count them.

// Appends a block: open, append the payload to `out`, close with what open_block() returned.
std::size_t open_block(Bytes& out, BlockKind kind);
void close_block(Bytes& out, std::size_t opened);
void put_block(Bytes& out, BlockKind kind, std::span<const std::byte> payload);
void put_header(Bytes& out, const SnapshotHeader& header);

struct Block {
  BlockKind kind = BlockKind::kHeader;
  std::span<const std::byte> payload;
};
// Takes the next block off the front of whole blocks; false once there is none. Throws
// ProtocolError on nonsense, but looks at no checksum.
bool next_block(std::span<const std::byte>& blocks, Block& block);
SnapshotHeader decode_snapshot_header(std::span<const std::byte> payload);

// How many of the first bytes are whole blocks; `needed`: how many bytes make the next one whole.
// Throws ProtocolError if a block's own checksum is wrong.
std::size_t whole_blocks(std::span<const std::byte> bytes, std::size_t& needed);

// What the footer says of all blocks before it.
struct Totals {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;  // Of the blocks' headers one after the other.
  friend bool operator==(const Totals&, const Totals&) = default;
};

// Adds the checksums to a snapshot's blocks, in their order.
class Sealer {
 public:
  void seal(std::span<std::byte> blocks);
  void seal(SnapshotBytes& blocks, std::size_t begin);  // From there on.
  // The same for a piece that is no block yet: what stands before it and behind it.
  void seal_piece(std::span<const std::byte> piece, std::vector<std::byte>& head,
                  std::vector<std::byte>& fill);
  void finish(Bytes& out);  // Appends the footer.

  // Of the whole file so far.
  std::uint64_t bytes() const { return totals_.bytes; }
  std::uint32_t crc() const { return file_crc_; }

 private:
  template <typename ChecksumOf>
  void seal_all(std::span<std::byte> blocks, ChecksumOf&& checksum_of);
  void add(std::span<const std::byte> head, std::size_t whole_bytes);

  Totals totals_;
  std::uint32_t file_crc_ = 0;
};

// Checks a snapshot's blocks, in their order. Throws ProtocolError that says at which byte what is
// wrong.
class Checker {
 public:
  void check(std::span<const std::byte> blocks);
  void finish() const;  // Throws unless the footer has come.

  bool has_header() const { return totals_.blocks > 0; }
  const SnapshotHeader& header() const { return header_; }
  // Of the whole file so far.
  std::uint64_t bytes() const { return at_; }
  std::uint32_t crc() const { return file_crc_; }

 private:
  void check_block(std::span<const std::byte> whole, const Block& block);

  Totals totals_;
  SnapshotHeader header_;
  std::uint64_t at_ = 0;
  std::uint32_t file_crc_ = 0;
  bool is_finished_ = false;
};

}  // namespace gradring::ps
