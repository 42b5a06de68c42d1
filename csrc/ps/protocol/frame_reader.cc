#include "ps/protocol/frame_reader.h"

#include <algorithm>
#include <new>

namespace gradring::ps {
namespace {

constexpr std::size_t kTurnBytes = std::size_t{1} << 20;

}  // namespace

FrameReader::Step FrameReader::read(transport::Link& link) {
  if (is_complete_) {
    is_complete_ = false;
    got_ = 0;
    memory_ = {};
  }
  if (got_ < wire::kPsHeaderBytes) {
    const transport::Io io = link.recv_some(std::span(head_).subspan(got_), {});
    got_ += io.bytes;
    if (got_ < wire::kPsHeaderBytes) {
      if (io.closed) return Step::kClosed;
      return io.bytes > 0 ? Step::kMoved : Step::kNothing;
    }
    header_ = wire::decode_ps_header(head_);
    return Step::kHeader;
  }
  const std::uint64_t have = got_ - wire::kPsHeaderBytes;
  const std::uint64_t left = header_.payload_bytes - have;
  if (left == 0) {
    is_complete_ = true;
    return Step::kFrame;
  }
  std::span<std::byte> to;
  const auto turn = static_cast<std::size_t>(std::min<std::uint64_t>(left, kTurnBytes));
  if (!memory_.empty()) {
    to = memory_.subspan(have, turn);
  } else {
    // Grows with what has come: a header alone takes no memory.
    make_room(have + turn);
    to = std::span(own_).subspan(have, turn);
  }
  const transport::Io io = link.recv_some({}, to);
  got_ += io.bytes;
  if (io.bytes == left) {
    is_complete_ = true;
    return Step::kFrame;
  }
  if (io.bytes > 0) return Step::kMoved;
  return io.closed ? Step::kClosed : Step::kNothing;
}

// Without memory for the rest of a frame the connection is of no use: its sender comes again.
void FrameReader::make_room(std::size_t bytes) {
  if (own_.size() >= bytes) return;
  try {
    own_.resize(bytes);
  } catch (const std::bad_alloc&) {
    throw ProtocolError(str("there is no memory for a ", wire::name(header_.type), " of ",
                            header_.payload_bytes, " bytes"));
  }
}

std::span<const std::byte> FrameReader::payload() const {
  const auto bytes = static_cast<std::size_t>(header_.payload_bytes);
  if (!memory_.empty()) return memory_.first(bytes);
  return std::span(own_).first(bytes);
}

Bytes FrameReader::take_payload() {
  own_.resize(static_cast<std::size_t>(header_.payload_bytes));
  return std::exchange(own_, {});
}

}  // namespace gradring::ps
