#include "collectives/gpu_hosts.h"

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "transport/idle.h"

namespace gradring::collectives {

void GpuHosts::InFlight::wait(Millis timeout) {
  const Time deadline = Clock::now() + timeout;
  const auto left = [&] {
    return std::max(Millis{0}, std::chrono::duration_cast<Millis>(deadline - Clock::now()));
  };
  for (StagedWork& part : parts) part.wait(left());
  while (end && !end->is_passed()) {
    transport::run_interrupt_check();
    if (Clock::now() >= deadline)
      throw TimedOut(str("wait: the GPUs of this host have not spread the result after ",
                         seconds_between(Time{}, Time{timeout}), " s; it goes on, wait() again"));
    std::this_thread::yield();
  }
}

GpuHosts::GpuHosts(std::shared_ptr<Communicator> all, std::shared_ptr<Communicator> across,
                   std::unique_ptr<LocalGpus> local, const gradring_gpu_api& api,
                   const Staged::Options& options)
    : ranks_(all->world_size()),
      local_(std::move(local)),
      all_(std::move(all), api, options),
      across_(std::move(across), api, options) {}

GpuHosts::InFlight GpuHosts::all_reduce(const Operation& operation, const Staged::Place& place,
                                        Millis timeout) {
  const Request& request = operation.request;
  GRADRING_ASSERT(request.op == OpKind::kAllReduce);
  const std::size_t item = item_bytes(request.dtype);
  const std::uint64_t each = request.count / static_cast<std::uint64_t>(local_->ranks());
  const std::uint64_t shared = each * static_cast<std::uint64_t>(local_->ranks());
  const std::uint64_t share_at = each * static_cast<std::uint64_t>(local_->rank()) * item;
  InFlight flight;
  // What does not divide evenly, a few elements, goes between all ranks.
  if (shared < request.count) {
    Operation rest = operation;
    rest.request.count = request.count - shared;
    rest.input += shared * item;
    rest.output += shared * item;
    flight.parts.push_back(all_.submit(rest, place, timeout));
  }
  if (each > 0) {
    std::byte* const share = operation.output + share_at;
    Request inside = request;
    if (inside.reduce_op == ReduceOp::kAvg) inside.reduce_op = ReduceOp::kSum;
    local_->reduce_scatter(operation.input, share, each, inside, place.stream);
    Operation between = operation;
    between.request.count = each;
    between.request.divisor =
        request.divisor != 0 ? request.divisor : static_cast<std::uint32_t>(ranks_);
    between.input = between.output = share;
    flight.parts.push_back(across_.submit(between, place, timeout));
    flight.parts.back().wait(flight.parts.back().view(place.stream), timeout);
    local_->all_gather(share, operation.output, each, request.dtype, place.stream);
  }
  if (flight.parts.empty()) return flight;
  StagedWork& first = flight.parts.front();
  first.wait(first.view(place.stream), timeout);
  flight.end = first.mark(place.stream);
  return flight;
}

}  // namespace gradring::collectives
