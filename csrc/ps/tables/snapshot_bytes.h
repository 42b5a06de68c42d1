// Bytes of a snapshot on the way from a shard's tables to whoever keeps them, with the checksums of
// those parts that were summed up as they were copied. Owned by whoever reads the snapshot, the
// shard's thread while that fills it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace gradring::ps {

class SnapshotBytes {
 public:
  // Who reads them next. What only a disk reads passes by the caches, of which training makes
  // better use: its checksum must be made on the way then.
  enum class Reader : std::uint8_t { kProcessor, kDisk };

  explicit SnapshotBytes(Reader reader = Reader::kProcessor) : reader_(reader) {}

  std::size_t size() const { return bytes_.size(); }
  std::byte* data() { return bytes_.data(); }
  Bytes& all() { return bytes_; }
  std::span<const std::byte> view() const { return bytes_; }

  void append(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(extend(bytes.size()), bytes.data(), bytes.size());
  }
  // What is long and will not be looked at again. Not to be written to afterwards.
  void append_run(std::span<const std::byte> bytes);
  // Returns where so many bytes are to be written.
  std::byte* extend(std::size_t bytes) {
    bytes_.resize(bytes_.size() + bytes);
    return bytes_.data() + bytes_.size() - bytes;
  }
  void cut_to(std::size_t size);

  std::uint32_t checksum(std::size_t begin, std::size_t end) const;

 private:
  struct Run {
    std::size_t begin;
    std::size_t end;
    std::uint32_t crc;
  };

  Reader reader_;
  Bytes bytes_;
  std::vector<Run> runs_;  // In their order.
};

}  // namespace gradring::ps
