#include "bind/operations.h"

#include "base/error.h"

namespace gradring::bind {
namespace {

using collectives::Communicator;
using collectives::Operation;

void check_extent(const Operation& operation, const char* which, std::uint64_t have,
                  std::uint64_t need) {
  if (have != need)
    throw InvalidArgument(str(name(operation.request.op), ": ", which, " has ", have, " elements, ",
                              need, " are needed"));
}

}  // namespace

void check_operation(const Communicator& communicator, const Operation& operation,
                     const Extent& input, const Extent& output) {
  const collectives::Request& request = operation.request;
  const auto ranks = static_cast<std::size_t>(communicator.world_size());
  if (request.root < 0 || request.root >= communicator.world_size())
    throw InvalidArgument(
        str(name(request.op), ": root ", request.root, " is not a rank of 0..", ranks - 1));
  for (const auto* counts : {&request.counts, &request.recv_counts})
    if (!counts->empty() && counts->size() != ranks)
      throw InvalidArgument(
          str(name(request.op), ": ", counts->size(), " counts for ", ranks, " ranks"));
  if (!is_defined(request.dtype, request.reduce_op))
    throw InvalidArgument(str(name(request.op), ": ", name(request.reduce_op),
                              " is not defined for ", name(request.dtype)));
  const auto extents =
      collectives::extents_of(request, communicator.rank(), communicator.world_size());
  if (extents.input > 0) check_extent(operation, "the input", input.count, extents.input);
  if (extents.output > 0) check_extent(operation, "the output", output.count, extents.output);
  if (extents.input > 0 && extents.output > 0 && input.dtype != output.dtype)
    throw InvalidArgument(str(name(request.op), ": the input is ", name(input.dtype),
                              ", the output ", name(output.dtype)));
  if (collectives::overlaps_wrongly(operation, communicator.rank(), communicator.world_size()))
    throw InvalidArgument(str(name(request.op),
                              ": input and output overlap, but are not the same array, nor is one "
                              "exactly this rank's part of the other; give it memory of its own"));
}

Operation operation_of(std::uint8_t op, std::uint8_t reduce_op, Rank root, std::uint64_t count,
                       Counts counts, Counts recv_counts, std::uint8_t algorithm,
                       bool is_rank_ordered) {
  if (op >= kOpKindCount || reduce_op >= kReduceOpCount) throw InvalidArgument("unknown operation");
  Operation operation;
  operation.request.op = static_cast<OpKind>(op);
  operation.request.reduce_op = static_cast<ReduceOp>(reduce_op);
  operation.request.root = root;
  operation.request.count = count;
  if (counts) operation.request.counts = std::move(*counts);
  if (recv_counts) operation.request.recv_counts = std::move(*recv_counts);
  operation.algorithm = static_cast<collectives::Algorithm>(algorithm);
  operation.is_rank_ordered = is_rank_ordered;
  return operation;
}

}  // namespace gradring::bind
