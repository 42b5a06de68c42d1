// Operations as Python asks for them, checked. Used by the bindings of collectives on host memory
// and on GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/point_to_point.h"

namespace gradring::bind {

using Counts = std::optional<std::vector<std::uint64_t>>;

// Without memory. Throws InvalidArgument for codes that mean nothing.
collectives::Operation operation_of(std::uint8_t op, std::uint8_t reduce_op, Rank root,
                                    std::uint64_t count, Counts counts, Counts recv_counts,
                                    std::uint8_t algorithm, bool is_rank_ordered);

struct Extent {
  std::uint64_t count = 0;
  DType dtype = DType::kUInt8;
};

// Throws InvalidArgument where the operation makes no sense, or not with arrays of these extents.
void check_operation(const collectives::Communicator& communicator,
                     const collectives::Operation& operation, const Extent& input,
                     const Extent& output);

// To or from `peer`; `array` is anything with data(), count() and dtype(), and is kept by the
// caller until the message is over.
template <typename Array>
std::shared_ptr<collectives::Transfer> message_of(bool is_recv, Rank peer, std::int32_t tag,
                                                  const Array& array) {
  auto message = std::make_shared<collectives::Transfer>();
  message->is_recv = is_recv;
  message->peer = peer;
  message->tag = tag;
  message->call.op = is_recv ? OpKind::kRecv : OpKind::kSend;
  message->call.dtype = array.dtype();
  message->call.count = array.count();
  message->data = array.data();
  message->bytes = array.count() * item_bytes(array.dtype());
  return message;
}

}  // namespace gradring::bind
