// Shorthands for the tests of Communicator: operations and messages over vectors, and a PlanCase as
// a communicator would run it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "support/collectives/plan_cases.h"

namespace gradring::testing {

inline constexpr Millis kPlenty{20'000};

inline collectives::Operation operation_on(OpKind op, std::vector<std::int64_t>& data) {
  collectives::Operation operation;
  operation.request.op = op;
  operation.request.dtype = DType::kInt64;
  operation.request.count = data.size();
  operation.input = reinterpret_cast<const std::byte*>(data.data());
  operation.output = reinterpret_cast<std::byte*>(data.data());
  return operation;
}

// In place.
inline void all_reduce(collectives::Communicator& comm, std::vector<std::int64_t>& data,
                       Millis timeout = kPlenty) {
  comm.run(operation_on(OpKind::kAllReduce, data), timeout);
}

inline void barrier(collectives::Communicator& comm, Millis timeout = kPlenty) {
  std::vector<std::int64_t> nothing;
  collectives::Operation operation = operation_on(OpKind::kBarrier, nothing);
  operation.request.dtype = DType::kUInt8;
  comm.run(operation, timeout);
}

// This rank's part of `c`.
inline collectives::Operation operation_of(const PlanCase& c, Rank rank, Memory& memory) {
  collectives::Operation operation;
  operation.request = c.requests()[static_cast<std::size_t>(rank)];
  operation.input = memory.bytes.data() + memory.input_at;
  operation.output = memory.bytes.data() + memory.output_at;
  return operation;
}

// The case in the order that the operation has with this algorithm.
inline PlanCase ordered(PlanCase c, collectives::Algorithm wanted = collectives::Algorithm::kAuto) {
  using collectives::Algorithm;
  c.algorithm = wanted;
  c.order =
      collectives::order_for(c.op, c.world_size, collectives::bytes_of(c.requests()[0]), c.dtype);
  if (wanted == Algorithm::kRing) c.order = collectives::Order::kRing;
  if (c.op == OpKind::kAllReduce &&
      (wanted == Algorithm::kDoubling || wanted == Algorithm::kHalving))
    c.order = collectives::Order::kTree;
  return c;
}

// A case with what every rank passes in and must get: worked out once, for all ranks.
struct Prepared {
  PlanCase c;
  std::vector<Memory> all;
  std::vector<reference::Buffer> expected;
};

inline Prepared prepared(const PlanCase& of,
                         collectives::Algorithm wanted = collectives::Algorithm::kAuto) {
  const PlanCase c = ordered(of, wanted);
  std::vector<Memory> all = random_memory(c, c.count + 17);
  std::vector<reference::Buffer> expected = expected_outputs(c, all);
  return {c, std::move(all), std::move(expected)};
}

// `data` outlives the transfer.
inline std::shared_ptr<collectives::Transfer> message(bool is_recv, Rank peer, std::int32_t tag,
                                                      std::vector<std::int64_t>& data) {
  auto transfer = std::make_shared<collectives::Transfer>();
  transfer->is_recv = is_recv;
  transfer->peer = peer;
  transfer->tag = tag;
  transfer->call.op = is_recv ? OpKind::kRecv : OpKind::kSend;
  transfer->call.dtype = DType::kInt64;
  transfer->call.count = data.size();
  transfer->data = reinterpret_cast<std::byte*>(data.data());
  transfer->bytes = data.size() * sizeof(std::int64_t);
  return transfer;
}

inline void send(collectives::Communicator& comm, std::vector<std::int64_t>& data, Rank to,
                 std::int32_t tag = 0, Millis timeout = kPlenty) {
  const auto transfer = message(false, to, tag, data);
  comm.point_to_point().start(transfer, false);
  comm.point_to_point().wait(transfer, timeout);
}

inline void recv(collectives::Communicator& comm, std::vector<std::int64_t>& data, Rank from,
                 std::int32_t tag = 0, Millis timeout = kPlenty) {
  const auto transfer = message(true, from, tag, data);
  comm.point_to_point().start(transfer, false);
  comm.point_to_point().wait(transfer, timeout);
}

}  // namespace gradring::testing
