#include "collectives/compressed_layout.h"

#include <cstring>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// In front of every encoded part: ranks must have chosen the same. Their parts may have equally
// many bytes although they do not: the largest values of vectors of other lengths, a sum and an
// average.
struct Header {
  std::uint16_t kind = 0;
  std::uint16_t is_divided = 0;
  float ratio = 0;
  std::uint64_t count = 0;

  friend bool operator==(const Header&, const Header&) = default;
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
  const Header header{static_cast<std::uint16_t>(codec_.kind), is_divided_,
                      static_cast<float>(codec_.ratio), count_};
  std::memcpy(out, &header, sizeof header);
}

void CompressedLayout::check_header(const std::byte* in, Rank from) const {
  Header theirs;
  std::memcpy(&theirs, in, sizeof theirs);
  const Header ours{static_cast<std::uint16_t>(codec_.kind), is_divided_,
                    static_cast<float>(codec_.ratio), count_};
  if (theirs == ours) return;
  const auto text = [](const Header& header) {
    const bool is_known = header.kind < kernels::kCodecKindCount;
    return str(is_known ? name(static_cast<kernels::CodecKind>(header.kind)) : "another codec",
               " (ratio ", header.ratio, ") for the ", header.is_divided != 0 ? "average" : "sum",
               " of ", header.count, " values");
  };
  throw Mismatch(str("the ranks compress differently: rank ", rank_, " with ", text(ours),
                     ", rank ", from, " with ", text(theirs)));
}

}  // namespace gradring::collectives
