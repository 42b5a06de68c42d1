#include "collectives/plan/operation.h"

#include <numeric>

namespace gradring::collectives {

std::uint64_t hash_of(const std::vector<std::uint64_t>& counts) {
  if (counts.empty()) return 0;
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a over words.
  for (const std::uint64_t count : counts) hash = (hash ^ count) * 1099511628211u;
  return hash | 1;
}

Call call_of(const Operation& operation) {
  const Request& request = operation.request;
  Call call;
  call.op = request.op;
  if (request.op == OpKind::kBarrier) return call;  // Whatever else stands there means nothing.
  call.dtype = request.dtype;
  call.reduce_op = request.reduce_op;
  call.algorithm = static_cast<std::uint8_t>(static_cast<unsigned>(operation.algorithm) |
                                             step_of(operation.step_of) |
                                             (operation.is_rank_ordered ? kInRankOrder : 0u));
  const bool has_root = request.op == OpKind::kBroadcast || request.op == OpKind::kReduce ||
                        request.op == OpKind::kGather || request.op == OpKind::kScatter;
  call.root = has_root ? request.root : -1;
  // In an all_to_all every rank has counts of its own; each pair is checked by the header's byte
  // count.
  if (request.op == OpKind::kAllToAll) return call;
  call.count = request.counts.empty() ? request.count
                                      : std::accumulate(request.counts.begin(),
                                                        request.counts.end(), std::uint64_t{0});
  call.counts_hash = hash_of(request.counts);
  return call;
}

bool agrees_first(const Request& request, Algorithm algorithm) {
  const bool reduces = request.op == OpKind::kAllReduce || request.op == OpKind::kReduceScatter ||
                       request.op == OpKind::kReduce;
  return algorithm == Algorithm::kRing && reduces && request.world_size > 2;
}

std::uint64_t bytes_of(const Request& request) {
  const std::uint64_t count =
      request.counts.empty()
          ? request.count
          : std::accumulate(request.counts.begin(), request.counts.end(), std::uint64_t{0});
  const std::uint64_t bytes = count * item_bytes(request.dtype);
  const bool is_one_part = request.op == OpKind::kGather || request.op == OpKind::kScatter;
  return is_one_part ? bytes * static_cast<std::uint64_t>(request.world_size) : bytes;
}

Extents extents_of(const Request& request, Rank rank, Rank world_size) {
  const auto total = [](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  const auto ranks = static_cast<std::uint64_t>(world_size);
  const std::uint64_t count = request.counts.empty() ? request.count : total(request.counts);
  const std::uint64_t part = request.counts.empty()
                                 ? chunk_begin(request.count, world_size, rank + 1) -
                                       chunk_begin(request.count, world_size, rank)
                                 : request.counts[static_cast<std::size_t>(rank)];
  const bool is_root = rank == request.root;
  switch (request.op) {
    case OpKind::kAllReduce: return {count, count};
    case OpKind::kBroadcast: return {count, is_root ? 0 : count};
    case OpKind::kReduce: return {count, is_root ? count : 0};
    case OpKind::kReduceScatter: return {count, part};
    case OpKind::kAllGather: return {part, count};
    case OpKind::kGather: return {request.count, is_root ? request.count * ranks : 0};
    case OpKind::kScatter: return {is_root ? request.count * ranks : 0, request.count};
    case OpKind::kAllToAll: return {total(request.counts), total(request.recv_counts)};
    default: return {};
  }
}

bool overlaps_wrongly(const Operation& operation, Rank rank, Rank world_size) {
  if (operation.input == nullptr || operation.output == nullptr) return false;
  const Request& request = operation.request;
  if (request.op == OpKind::kAllReduce && operation.input == operation.output) return false;
  const std::uint64_t item = item_bytes(request.dtype);
  const Extents extents = extents_of(request, rank, world_size);
  const auto input = reinterpret_cast<std::uintptr_t>(operation.input);
  const auto output = reinterpret_cast<std::uintptr_t>(operation.output);
  if (extents.input == 0 || extents.output == 0 || input >= output + extents.output * item ||
      output >= input + extents.input * item)
    return false;
  const auto index = static_cast<std::size_t>(rank);
  const std::uint64_t part =
      request.counts.empty()
          ? chunk_begin(request.count, world_size, rank)
          : std::accumulate(request.counts.begin(),
                            request.counts.begin() + static_cast<std::ptrdiff_t>(index),
                            std::uint64_t{0});
  switch (request.op) {
    case OpKind::kAllGather: return input != output + part * item;
    case OpKind::kReduceScatter: return output != input + part * item;
    case OpKind::kGather: return input != output + index * request.count * item;
    case OpKind::kScatter: return output != input + index * request.count * item;
    case OpKind::kAllToAll: return true;
    default: return input != output;
  }
}

}  // namespace gradring::collectives
