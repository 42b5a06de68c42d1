// What goes before the payload of one operation on one link, in each direction: who calls what. 64
// bytes, checked on arrival before any payload is used, so that mismatched calls are an error and
// not a hang or a wrong sum (promise P3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/call.h"

namespace gradring::wire {

struct OpHeader {
  Call call;
  std::uint64_t seq = 0;    // Number of the operation in its communicator. send and recv: number of
                            // the message to this peer.
  std::int32_t tag = 0;     // send and recv only.
  std::uint64_t bytes = 0;  // send: the payload's. Collectives: 0, the plan knows.
};

inline constexpr std::size_t kOpHeaderBytes = 64;
using OpHeaderBytes = std::array<std::byte, kOpHeaderBytes>;

OpHeaderBytes encode(const OpHeader& header);
// Throws ProtocolError on a wrong magic, version or enum.
OpHeader decode_op_header(std::span<const std::byte, kOpHeaderBytes> bytes);

}  // namespace gradring::wire
