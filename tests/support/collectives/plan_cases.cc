#include "support/collectives/plan_cases.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/text.h"
#include "support/split_mix.h"

namespace gradring::testing {

using collectives::Order;
using collectives::Request;
using reference::Buffer;

namespace {

std::size_t index(Rank rank) {
  return static_cast<std::size_t>(rank);
}

std::uint64_t cut(const PlanCase& c, Rank chunk) {
  __extension__ using Wide = unsigned __int128;
  const auto product = Wide{c.count} * static_cast<unsigned>(chunk);
  return static_cast<std::uint64_t>(product / static_cast<unsigned>(c.world_size));
}

// Elements of each rank's part, for the operations that have parts.
std::vector<std::uint64_t> part_counts(const PlanCase& c) {
  std::vector<std::uint64_t> counts;
  for (Rank rank = 0; rank < c.world_size; ++rank) {
    const std::uint64_t even = cut(c, rank + 1) - cut(c, rank);
    counts.push_back(c.has_uneven_counts ? even * static_cast<unsigned>(rank % 3) : even);
  }
  return counts;
}

// all_to_all: elements from one rank to another.
std::uint64_t pair_count(const PlanCase& c, Rank from, Rank to) {
  if (!c.has_uneven_counts) return cut(c, to + 1) - cut(c, to);
  return c.count / static_cast<unsigned>(c.world_size) * static_cast<unsigned>((from + 2 * to) % 4);
}

std::uint64_t sum(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

Buffer slice(const Buffer& bytes, std::uint64_t begin, std::uint64_t size) {
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

void append(Buffer& to, const Buffer& bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// The sum of the vectors' elements [begin, end), which belong to the chunk of `owner`.
Buffer fold_chunk(const PlanCase& c, const std::vector<Buffer>& inputs, Rank owner,
                  std::uint64_t begin, std::uint64_t end) {
  const std::size_t item = item_bytes(c.dtype);
  std::vector<Buffer> operands;
  for (Rank i = 0; i < c.world_size; ++i) {
    const Rank rank = c.order == Order::kRing ? (owner + 1 + i) % c.world_size : i;
    operands.push_back(slice(inputs[index(rank)], begin * item, (end - begin) * item));
  }
  return reference::reduce(
      operands,
      {.dtype = c.dtype,
       .op = c.reduce_op,
       .fold = c.order == Order::kTree ? kernels::Fold::kTree : kernels::Fold::kLeft,
       .divisor = c.reduce_op == ReduceOp::kAvg ? static_cast<std::uint32_t>(c.world_size) : 1u});
}

// The reduced vector, chunk by chunk.
std::vector<Buffer> reduced_chunks(const PlanCase& c, const std::vector<Buffer>& inputs) {
  const bool has_parts = c.op == OpKind::kReduceScatter;
  const std::vector<std::uint64_t> counts = part_counts(c);
  std::vector<Buffer> chunks;
  std::uint64_t begin = 0;
  for (Rank owner = 0; owner < c.world_size; ++owner) {
    const std::uint64_t end = has_parts ? begin + counts[index(owner)] : cut(c, owner + 1);
    chunks.push_back(fold_chunk(c, inputs, owner, begin, end));
    begin = end;
  }
  return chunks;
}

Buffer joined(const std::vector<Buffer>& parts) {
  Buffer whole;
  for (const Buffer& part : parts) append(whole, part);
  return whole;
}

// Elements of the input and the output of one rank.
struct Shape {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
};

Shape shape(const PlanCase& c, Rank rank) {
  const bool is_root = rank == c.root;
  const auto all = c.count * static_cast<unsigned>(c.world_size);
  const std::vector<std::uint64_t> parts = part_counts(c);
  switch (c.op) {
    case OpKind::kAllReduce:
    case OpKind::kBroadcast: return {c.count, c.count};
    case OpKind::kReduce: return {c.count, is_root ? c.count : 0};
    case OpKind::kReduceScatter: return {sum(parts), parts[index(rank)]};
    case OpKind::kAllGather: return {parts[index(rank)], sum(parts)};
    case OpKind::kGather: return {c.count, is_root ? all : 0};
    case OpKind::kScatter: return {is_root ? all : 0, c.count};
    case OpKind::kAllToAll: {
      Shape shape;
      for (Rank peer = 0; peer < c.world_size; ++peer) {
        shape.input += pair_count(c, rank, peer);
        shape.output += pair_count(c, peer, rank);
      }
      return shape;
    }
    default: return {};
  }
}

// A value of random sign, magnitude 2^-12 to 2^12 and mantissa: float32's bits.
std::uint32_t random_float_bits(SplitMix64& random) {
  const std::uint64_t bits = random.next();
  const auto exponent = static_cast<std::uint32_t>(127 - 12 + (bits >> 40) % 25);
  return (static_cast<std::uint32_t>(bits) & 0x807fffffu) | exponent << 23;
}

template <typename T>
void put(Buffer& bytes, std::size_t at, T value) {
  std::memcpy(&bytes[at], &value, sizeof(T));
}

// Each copy's length is known to the compiler: sanitizers look into a memcpy that is called, and
// that took a third of the time of tests of long vectors.
void put_value(Buffer& bytes, std::size_t at, DType dtype, SplitMix64& random) {
  const std::uint32_t float_bits = random_float_bits(random);
  const auto value = std::bit_cast<float>(float_bits);
  if (dtype == DType::kFloat32) return put(bytes, at, float_bits);
  if (dtype == DType::kFloat64) return put(bytes, at, value / 3.0);
  if (is_half(dtype)) return put(bytes, at, reference::nearest_half(dtype, value));
  const std::uint64_t bits = dtype == DType::kBool ? random.below(2) : random.next();
  switch (item_bytes(dtype)) {
    case 1: return put(bytes, at, static_cast<std::uint8_t>(bits));
    case 2: return put(bytes, at, static_cast<std::uint16_t>(bits));
    case 4: return put(bytes, at, static_cast<std::uint32_t>(bits));
    default: return put(bytes, at, bits);
  }
}

void fill(Buffer& bytes, DType dtype, SplitMix64& random) {
  const std::size_t item = item_bytes(dtype);
  for (std::size_t at = 0; at + item <= bytes.size(); at += item) {
    put_value(bytes, at, dtype, random);
  }
}

// Where output begins relative to input in an in-place call, in bytes (negative: before it).
std::ptrdiff_t overlap_offset(const PlanCase& c, Rank rank) {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes(c.dtype));
  const std::vector<std::uint64_t> parts = part_counts(c);
  const auto before = static_cast<std::ptrdiff_t>(
      std::accumulate(parts.begin(), parts.begin() + rank, std::uint64_t{0}));
  const auto equal = static_cast<std::ptrdiff_t>(c.count) * rank;
  switch (c.op) {
    case OpKind::kReduceScatter: return before * item;
    case OpKind::kAllGather: return -before * item;
    case OpKind::kGather: return -equal * item;
    case OpKind::kScatter: return equal * item;
    default: return 0;
  }
}

}  // namespace

std::string PlanCase::text() const {
  return str(name(op), "/", name(algorithm), " n=", world_size, " count=", count, " ", name(dtype),
             " ", name(reduce_op), " order=", static_cast<int>(order), " root=", root,
             has_uneven_counts ? " uneven" : "", is_in_place ? " in place" : "");
}

std::vector<Request> PlanCase::requests() const {
  std::vector<Request> requests;
  for (Rank rank = 0; rank < world_size; ++rank) {
    Request request{.op = op,
                    .dtype = dtype,
                    .reduce_op = reduce_op,
                    .rank = rank,
                    .world_size = world_size,
                    .root = root,
                    .count = count,
                    .counts = {},
                    .recv_counts = {},
                    .order = order};
    if (has_uneven_counts && op == OpKind::kAllToAll) {
      for (Rank peer = 0; peer < world_size; ++peer) {
        request.counts.push_back(pair_count(*this, rank, peer));
        request.recv_counts.push_back(pair_count(*this, peer, rank));
      }
    } else if (has_uneven_counts) {
      request.counts = part_counts(*this);
    } else if (op == OpKind::kAllReduce) {
      request.counts = owned;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

Buffer Memory::input() const {
  return slice(bytes, input_at, input_bytes);
}
Buffer Memory::output() const {
  return slice(bytes, output_at, output_bytes);
}

bool Memory::input_is(const Buffer& expected) const {
  return input_bytes == expected.size() &&
         (expected.empty() || std::memcmp(&bytes[input_at], expected.data(), input_bytes) == 0);
}
bool Memory::output_is(const Buffer& expected) const {
  return output_bytes == expected.size() &&
         (expected.empty() || std::memcmp(&bytes[output_at], expected.data(), output_bytes) == 0);
}

std::vector<Memory> memory_of(const PlanCase& c) {
  std::vector<Memory> ranks;
  for (Rank rank = 0; rank < c.world_size; ++rank) {
    const Shape elements = shape(c, rank);
    const std::size_t item = item_bytes(c.dtype);
    Memory memory;
    memory.input_bytes = elements.input * item;
    memory.output_bytes = elements.output * item;
    if (c.is_in_place && memory.input_bytes > 0 && memory.output_bytes > 0) {
      const std::ptrdiff_t offset = overlap_offset(c, rank);
      memory.input_at = offset < 0 ? static_cast<std::size_t>(-offset) : 0;
      memory.output_at = offset > 0 ? static_cast<std::size_t>(offset) : 0;
    } else {
      memory.output_at = memory.input_bytes;
    }
    ranks.push_back(std::move(memory));
  }
  return ranks;
}

std::vector<Memory> random_memory(const PlanCase& c, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<Memory> ranks = memory_of(c);
  for (Memory& memory : ranks) {
    memory.bytes.resize(
        std::max(memory.input_at + memory.input_bytes, memory.output_at + memory.output_bytes));
    fill(memory.bytes, c.dtype, random);
  }
  return ranks;
}

std::vector<Buffer> expected_outputs(const PlanCase& c, const std::vector<Memory>& memory) {
  const std::size_t item = item_bytes(c.dtype);
  std::vector<Buffer> inputs;
  for (const Memory& rank : memory) inputs.push_back(rank.input());
  std::vector<Buffer> outputs(inputs.size());
  switch (c.op) {
    case OpKind::kAllReduce:
      outputs.assign(inputs.size(), joined(reduced_chunks(c, inputs)));
      break;
    case OpKind::kReduce: outputs[index(c.root)] = joined(reduced_chunks(c, inputs)); break;
    case OpKind::kReduceScatter: outputs = reduced_chunks(c, inputs); break;
    case OpKind::kAllGather: outputs.assign(inputs.size(), joined(inputs)); break;
    case OpKind::kGather: outputs[index(c.root)] = joined(inputs); break;
    case OpKind::kBroadcast: outputs.assign(inputs.size(), inputs[index(c.root)]); break;
    case OpKind::kScatter:
      for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
        outputs[rank] = slice(inputs[index(c.root)], rank * c.count * item, c.count * item);
      }
      break;
    case OpKind::kAllToAll:
      for (Rank from = 0; from < c.world_size; ++from) {
        std::uint64_t begin = 0;
        for (Rank to = 0; to < c.world_size; ++to) {
          const std::uint64_t bytes = pair_count(c, from, to) * item;
          append(outputs[index(to)], slice(inputs[index(from)], begin, bytes));
          begin += bytes;
        }
      }
      break;
    default: break;
  }
  return outputs;
}

std::vector<bool> contributors(const PlanCase& c, Rank rank) {
  std::vector<bool> ranks(index(c.world_size), true);
  const std::vector<std::uint64_t> parts = part_counts(c);
  for (Rank peer = 0; peer < c.world_size; ++peer) {
    const bool is_root = peer == c.root;
    if (c.op == OpKind::kBroadcast || c.op == OpKind::kScatter) ranks[index(peer)] = is_root;
    if (c.op == OpKind::kAllGather) ranks[index(peer)] = parts[index(peer)] > 0;
    if (c.op == OpKind::kAllToAll) ranks[index(peer)] = pair_count(c, peer, rank) > 0;
  }
  return ranks;
}

std::uint64_t operation_bytes(const PlanCase& c, Rank rank) {
  const Shape elements = shape(c, rank);
  const std::uint64_t larger = std::max(elements.input, elements.output);
  return (c.op == OpKind::kAllToAll ? elements.output : larger) * item_bytes(c.dtype);
}

}  // namespace gradring::testing
