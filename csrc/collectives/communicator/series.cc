// Communicator: several collectives in a row, and what lies between them, as one.
#include "base/error.h"
#include "collectives/communicator/communicator.h"
#include "collectives/engine/compressed_layout.h"

namespace gradring::collectives {

std::shared_ptr<Work> Communicator::submit(const Compressed& what, Millis timeout) {
  Call call;
  call.op = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.count = what.count;
  call.algorithm = step_of(StepOf::kAllReduceCompressed);
  check_usable(call);
  const Ticks now = ticks_now();
  const auto carry_out = [this, what, call, timeout, now] {
    try {
      all_reduce_compressed(what, rank_, world_size(),
                            [&](const Operation& operation) { execute(operation, timeout, now); });
    } catch (const Mismatch& error) {
      // Found by a step, which knows of bytes only.
      if (group_->is_failed())
        throw Mismatch(str(error.what(), "; this rank compresses with ",
                           CompressedLayout(what, rank_, world_size()).text()));
      fail(call, seq_, std::current_exception(), timeout).raise();
    } catch (const InvalidArgument&) {
      throw;  // Before its first step.
    } catch (...) {
      if (group_->is_failed()) throw;
      // Between steps, for want of memory say: the others would wait in the next one.
      fail(call, seq_, std::current_exception(), timeout).raise();
    }
  };
  return enqueue(std::make_shared<Work>(group_, carry_out, call, now));
}

std::shared_ptr<Work> Communicator::submit(const Call& call,
                                           std::function<void(const Execute&)> carry_out,
                                           Millis timeout) {
  check_usable(call);
  const Ticks now = ticks_now();
  const auto run = [this, carry_out = std::move(carry_out), call, timeout, now] {
    try {
      carry_out([&](const Operation& operation) { execute(operation, timeout, now); });
    } catch (...) {
      if (group_->is_failed()) throw;
      fail(call, seq_, std::current_exception(), timeout).raise();
    }
  };
  return enqueue(std::make_shared<Work>(group_, run, call, now));
}

std::shared_ptr<Work> Communicator::submit(const Call& call, std::shared_ptr<Composition> operation,
                                           Millis timeout) {
  check_usable(call);
  const Ticks now = ticks_now();
  return enqueue(std::make_shared<Work>(
      group_,
      [this, call, operation = std::move(operation), timeout, now] {
        execute(call, *operation, timeout, now);
      },
      call, now));
}

Communicator::Cutting Communicator::cutting_of(const Operation& operation) const {
  Cutting cutting{engine_.complete(operation), operation.algorithm};
  if (engine_.decide(cutting.request, operation.algorithm) != Algorithm::kHierarchical)
    return cutting;
  cutting.algorithm = Algorithm::kHierarchical;
  cutting.segment_count = Hierarchy::kSegmentBytes / item_bytes(operation.request.dtype);
  return cutting;
}

}  // namespace gradring::collectives
