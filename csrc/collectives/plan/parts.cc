#include "collectives/plan/parts.h"

#include <algorithm>

namespace gradring::collectives {

namespace {

constexpr std::uint64_t kLeastPieceBytes = 16 * 1024;
constexpr std::uint64_t kOverlap = 4;

}  // namespace

Rank pieces_of(std::uint64_t bytes) {
  if (bytes > kOverlap * kPieceBytes) {
    return static_cast<Rank>((bytes - 1) / kPieceBytes + 1);
  }
  return static_cast<Rank>(std::clamp<std::uint64_t>(bytes / kLeastPieceBytes, 1, kOverlap));
}

Parts::Parts(const Request& request)
    : Parts(item_bytes(request.dtype), static_cast<std::size_t>(request.world_size)) {
  for (Rank rank = 0; rank < request.world_size; ++rank) {
    begins_.push_back(request.counts.empty()
                          ? chunk_begin(request.count, request.world_size, rank + 1)
                          : begins_.back() + request.counts[static_cast<std::size_t>(rank)]);
  }
}

Parts Parts::equal(const Request& request) {
  Parts parts(item_bytes(request.dtype), static_cast<std::size_t>(request.world_size));
  for (Rank rank = 0; rank < request.world_size; ++rank) {
    parts.begins_.push_back(parts.begins_.back() + request.count);
  }
  return parts;
}

Parts::Parts(std::span<const std::uint64_t> counts, std::uint64_t item_bytes)
    : Parts(item_bytes, counts.size()) {
  for (const std::uint64_t count : counts) begins_.push_back(begins_.back() + count);
}

std::uint64_t Parts::largest_bytes() const {
  std::uint64_t largest = 0;
  for (Rank index = 0; index < size(); ++index) largest = std::max(largest, part(index).bytes);
  return largest;
}

std::uint64_t Parts::largest_piece_bytes(Rank columns) const {
  const auto pieces = static_cast<std::uint64_t>(columns);
  return (largest_bytes() / item_bytes_ + pieces - 1) / pieces * item_bytes_;
}

Extent Parts::part(Rank index) const {
  return piece(index, 0, 1);
}

Extent Parts::piece(Rank index, Rank column, Rank columns) const {
  const std::uint64_t begin = begins_[static_cast<std::size_t>(index)];
  const std::uint64_t count = begins_[static_cast<std::size_t>(index) + 1] - begin;
  const std::uint64_t from = chunk_begin(count, columns, column);
  const std::uint64_t to = chunk_begin(count, columns, column + 1);
  return {.begin_bytes = (begin + from) * item_bytes_, .bytes = (to - from) * item_bytes_};
}

}  // namespace gradring::collectives
