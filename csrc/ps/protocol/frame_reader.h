// FrameReader: takes frames off a link, step by step. The payload is written where its receiver
// wants it, or into memory of its own that is used again. Used by the client's driver and by the
// server's shard threads; owned by one of them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "transport/links/link.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

class FrameReader {
 public:
  enum class Step : std::uint8_t { kNothing, kMoved, kHeader, kFrame, kClosed };

  // Reads on, as far as the link gives. kHeader: header() is there now, use_memory() may be called.
  // kFrame: payload() is there; the next read starts a new frame. Throws ProtocolError, also for
  // lack of memory: the connection is of no use then.
  Step read(transport::Link& link);

  const wire::PsHeader& header() const { return header_; }
  // The payload goes there, header().payload_bytes of it; not called: into own memory.
  void use_memory(std::span<std::byte> memory) { memory_ = memory; }
  // Own memory for the payload, with room or without: what take_payload() will give.
  void use_own(Bytes memory) { own_ = std::move(memory); }
  bool uses_memory() const { return !memory_.empty() && !is_complete_; }
  std::span<const std::byte> payload() const;
  // Own memory, to keep; the reader has none afterwards.
  Bytes take_payload();
  bool is_inside_frame() const { return got_ > 0; }
  // Of a frame that is not complete.
  bool has_header() const { return got_ >= wire::kPsHeaderBytes && !is_complete_; }

 private:
  void make_room(std::size_t bytes);

  wire::PsHeaderBytes head_{};
  wire::PsHeader header_;
  std::uint64_t got_ = 0;  // Of header and payload.
  bool is_complete_ = false;
  std::span<std::byte> memory_;
  Bytes own_;
};

}  // namespace gradring::ps
