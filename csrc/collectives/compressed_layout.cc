#include "collectives/compressed_layout.h"

#include <cstring>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// In front of every encoded part: ranks must have chosen the same.
struct Header {
  std::uint64_t kind = 0;
  double ratio = 0;
};
static_assert(sizeof(Header) == CompressedLayout::kHeaderBytes);

}  // namespace

std::size_t CompressedLayout::bytes_of_all() const {
  std::size_t all = 0;
  for (Rank part = 0; part < ranks_; ++part) all += bytes(part);
  return all;
}

Operation CompressedLayout::exchange() const {
  Operation exchange;
  exchange.request.op = OpKind::kAllToAll;
  exchange.request.dtype = DType::kUInt8;
  for (Rank part = 0; part < ranks_; ++part) {
    exchange.request.counts.push_back(part == rank_ ? 0 : bytes(part));
    exchange.request.recv_counts.push_back(part == rank_ ? 0 : bytes(rank_));
  }
  return exchange;
}

Operation CompressedLayout::spread() const {
  Operation spread;
  spread.request.op = OpKind::kAllGather;
  spread.request.dtype = DType::kUInt8;
  for (Rank part = 0; part < ranks_; ++part) spread.request.counts.push_back(bytes(part));
  return spread;
}

void CompressedLayout::write_header(std::byte* out) const {
  const Header header{static_cast<std::uint64_t>(codec_.kind), codec_.ratio};
  std::memcpy(out, &header, sizeof header);
}

void CompressedLayout::check_header(const std::byte* in, Rank from) const {
  Header header;
  std::memcpy(&header, in, sizeof header);
  if (header.kind != static_cast<std::uint64_t>(codec_.kind) || header.ratio != codec_.ratio)
    throw Mismatch(str("the ranks compress differently: rank ", rank_, " with ", name(codec_.kind),
                       " (ratio ", codec_.ratio, "), rank ", from, " with another codec or ratio"));
}

}  // namespace gradring::collectives
