#include "fake_nccl/comm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/half.h"

namespace fake {
namespace {

using gradring::kernels::BFloat16;
using gradring::kernels::Float16;

template <typename Value>
struct Plain {
  using Item = Value;
  using Work = Value;
  static Work widened(Item item) { return item; }
  static Item rounded(Work work) { return work; }
};

template <typename Work>
Work combined(Work a, Work b, RedOp op) {
  switch (op) {
    case RedOp::kProd: return static_cast<Work>(a * b);
    case RedOp::kMax: return std::max(a, b);
    case RedOp::kMin: return std::min(a, b);
    default: return static_cast<Work>(a + b);
  }
}

// In the order of ranks; not NCCL's order, so tests use numbers whose sums are exact.
template <typename Kind>
void fold(const std::vector<std::vector<char>>& inputs, std::size_t first, const Operation& call) {
  for (std::size_t i = 0; i < call.count; ++i) {
    typename Kind::Work sum{};
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      typename Kind::Item item;
      std::memcpy(&item, inputs[rank].data() + (first + i) * sizeof(item), sizeof(item));
      auto value = Kind::widened(item);
      if constexpr (std::is_floating_point_v<typename Kind::Work>)
        value = static_cast<typename Kind::Work>(value * call.factor);
      sum = rank == 0 ? value : combined(sum, value, call.op);
    }
    if constexpr (std::is_floating_point_v<typename Kind::Work>)
      if (call.op == RedOp::kAvg) sum /= static_cast<typename Kind::Work>(inputs.size());
    const auto item = Kind::rounded(sum);
    std::memcpy(call.output + i * sizeof(item), &item, sizeof(item));
  }
}

void reduce(const std::vector<std::vector<char>>& inputs, std::size_t first,
            const Operation& call) {
  switch (call.type) {
    case DataType::kInt8: return fold<Plain<std::int8_t>>(inputs, first, call);
    case DataType::kUint8: return fold<Plain<std::uint8_t>>(inputs, first, call);
    case DataType::kInt32: return fold<Plain<std::int32_t>>(inputs, first, call);
    case DataType::kUint32: return fold<Plain<std::uint32_t>>(inputs, first, call);
    case DataType::kInt64: return fold<Plain<std::int64_t>>(inputs, first, call);
    case DataType::kUint64: return fold<Plain<std::uint64_t>>(inputs, first, call);
    case DataType::kFloat16: return fold<Float16>(inputs, first, call);
    case DataType::kFloat32: return fold<Plain<float>>(inputs, first, call);
    case DataType::kFloat64: return fold<Plain<double>>(inputs, first, call);
    case DataType::kBfloat16: return fold<BFloat16>(inputs, first, call);
  }
}

std::string described(const Operation& call) {
  return call.name + " " + std::to_string(call.count) + " " +
         std::to_string(static_cast<int>(call.type)) + " " +
         std::to_string(std::min(static_cast<int>(call.op), 5)) + " " + std::to_string(call.root);
}

void run_collective(Comm& comm, const Operation& call) {
  const std::size_t item = bytes_of(call.type);
  const std::size_t ranks = static_cast<std::size_t>(comm.size);
  std::vector<std::size_t> bytes(ranks, call.count * item);
  if (call.name == "ReduceScatter") bytes.assign(ranks, call.count * item * ranks);
  if (call.name == "Broadcast")
    for (int rank = 0; rank < comm.size; ++rank)
      if (rank != call.root) bytes[static_cast<std::size_t>(rank)] = 0;
  const auto inputs = comm.segment->exchange(described(call), call.input, bytes);
  if (call.name == "AllReduce") {
    reduce(inputs, 0, call);
  } else if (call.name == "Reduce") {
    if (comm.rank == call.root) reduce(inputs, 0, call);
  } else if (call.name == "ReduceScatter") {
    reduce(inputs, static_cast<std::size_t>(comm.rank) * call.count, call);
  } else if (call.name == "Broadcast") {
    const auto& from = inputs[static_cast<std::size_t>(call.root)];
    std::copy(from.begin(), from.end(), call.output);
  } else {
    char* to = call.output;
    for (const auto& from : inputs) to = std::copy(from.begin(), from.end(), to);
  }
}

}  // namespace

std::size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16: return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32: return 4;
    default: return 8;
  }
}

void run(Comm& comm, std::vector<Operation> operations) try {
  std::vector<Message> messages;
  for (const Operation& call : operations) {
    if (call.hangs) comm.segment->wait_until([] { return false; });
    const bool is_send = call.name == "Send";
    if (is_send || call.name == "Recv")
      messages.push_back({!is_send, is_send ? const_cast<char*>(call.input) : call.output,
                          call.count * bytes_of(call.type), call.root});
    else
      run_collective(comm, call);
  }
  comm.segment->deliver(std::move(messages));
} catch (const Aborted&) {
  // As NCCL's kernels do: they end, and leave what they have made so far.
}

}  // namespace fake
