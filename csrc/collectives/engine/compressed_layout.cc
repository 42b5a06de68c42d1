#include "collectives/engine/compressed_layout.h"

#include <cstring>
#include <string>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// In front of every encoded part: ranks must have chosen the same. Their parts may have equally
// many bytes although they do not: the largest values of vectors of other lengths, a sum and an
// average.
struct Header {
  std::uint64_t what = 0;  // From the lowest bit: the codec's kind (8), is divided (1), the count.
  double ratio = 0;

  static Header of(const kernels::Codec& codec, bool is_divided, std::uint64_t count) {
    return {count << 9 | std::uint64_t{is_divided} << 8 | static_cast<std::uint64_t>(codec.kind),
            codec.ratio};
  }
  std::string text() const {
    const std::uint64_t kind = what & 0xff;
    const bool is_known = kind < kernels::kCodecKindCount;
    return str(is_known ? name(static_cast<kernels::CodecKind>(kind)) : "another codec", " (ratio ",
               ratio, ") for the ", (what >> 8 & 1) != 0 ? "average" : "sum", " of ", what >> 9,
               " values");
  }

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
  exchange.step_of = StepOf::kAllReduceCompressed;
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
  spread.step_of = StepOf::kAllReduceCompressed;
  for (Rank part = 0; part < ranks_; ++part) spread.request.counts.push_back(bytes(part));
  return spread;
}

std::string CompressedLayout::text() const {
  return Header::of(codec_, is_divided_, count_).text();
}

void CompressedLayout::write_header(std::byte* out) const {
  const Header header = Header::of(codec_, is_divided_, count_);
  std::memcpy(out, &header, sizeof header);
}

void CompressedLayout::check_header(const std::byte* in, Rank from) const {
  Header theirs;
  std::memcpy(&theirs, in, sizeof theirs);
  const Header ours = Header::of(codec_, is_divided_, count_);
  if (theirs == ours) return;
  throw Mismatch(str("the ranks compress differently: rank ", rank_, " with ", ours.text(),
                     ", rank ", from, " with ", theirs.text()));
}

}  // namespace gradring::collectives
