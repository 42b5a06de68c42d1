#include "collectives/device/nccl_ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "collectives/device/nccl_lane.h"
#include "gpu/nccl_library.h"
#include "gpu/plugin.h"
#include "kernels/half.h"
#include "transport/links/forks.h"

namespace gradring::collectives {
namespace {

// What each rank tells the others before they meet in NCCL; rank 0's id is the one they use.
struct Offer {
  std::int32_t version = 0;  // 0: this rank cannot take part, and `why`.
  char why[508] = {};
  gpu::nccl::UniqueId id{};
};

Offer make_offer(Rank rank, int device) {
  Offer offer;
  try {
    int count = 0;
    gpu::check(gpu::devices().runtime->device_count(&count), "counting devices");
    if (device < 0 || device >= count)
      throw DeviceError(str("there is no device ", device, " among ", count));
    if (rank == 0) offer.id = gpu::NcclCommunicator::make_id();
    offer.version = gpu::nccl_library().version;
  } catch (const std::exception& error) {
    offer.version = 0;
    std::string_view(error.what()).copy(offer.why, sizeof(offer.why) - 1);
  }
  return offer;
}

template <typename Value>
std::vector<Value> gather(Communicator& ranks, const Value& own, Millis timeout) {
  std::vector<Value> all(static_cast<std::size_t>(ranks.world_size()));
  Operation exchange;
  exchange.request.op = OpKind::kAllGather;
  exchange.request.dtype = DType::kUInt8;
  exchange.request.count = all.size() * sizeof(Value);
  exchange.input = reinterpret_cast<const std::byte*>(&own);
  exchange.output = reinterpret_cast<std::byte*>(all.data());
  ranks.run(exchange, timeout);
  return all;
}

// The id to meet under, once everybody has said that it can.
gpu::nccl::UniqueId agree(Communicator& ranks, int device, Millis timeout) {
  const auto offers = gather(ranks, make_offer(ranks.rank(), device), timeout);
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const std::string who = ranks.describe(static_cast<Rank>(rank));
    if (offers[rank].version == 0)
      throw DeviceError(str("NCCL cannot be used: ", who, " says: ", offers[rank].why));
    if (offers[rank].version != offers[0].version)
      throw DeviceError(str("NCCL cannot be used: ", who, " has version ",
                            gpu::nccl_version_text(offers[rank].version), ", rank 0 ",
                            gpu::nccl_version_text(offers[0].version),
                            "; give all ranks the same, GRADRING_NCCL_LIB can name it"));
  }
  return offers[0].id;
}

void carry_out(Communicator& guard, OpKind op, std::shared_ptr<ForeignOperation> step,
               Millis timeout) {
  Call call;
  call.op = op;
  const auto work = guard.submit(call, std::move(step), timeout);
  guard.wait(*work, Millis::max());  // It has a deadline of its own.
}

// As call_of(Operation): what all ranks must agree on.
Call call_of(const gpu::NcclCall& asked) {
  Call call;
  call.op = asked.op;
  call.dtype = asked.dtype;
  call.reduce_op = asked.reduce_op;
  const bool has_root = asked.op != OpKind::kAllReduce && asked.op != OpKind::kReduceScatter &&
                        asked.op != OpKind::kAllGather && asked.op != OpKind::kAllToAll;
  call.root = has_root ? asked.root : -1;
  if (asked.op == OpKind::kAllToAll) return call;
  call.count = asked.parts.empty()
                   ? asked.count
                   : std::accumulate(asked.parts.begin(), asked.parts.end(), std::uint64_t{0});
  call.counts_hash = hash_of(asked.parts);
  return call;
}

void check_call(const gpu::NcclCall& call, Rank world_size) {
  if (!gpu::nccl_knows(call))
    throw InvalidArgument(str("NCCL has no ", describe(call_of(call)), " as it is meant here"));
  if (call.root < 0 || call.root >= world_size)
    throw InvalidArgument(
        str(name(call.op), ": rank ", call.root, " is not one of 0..", world_size - 1));
  const bool has_parts = call.op == OpKind::kReduceScatter || call.op == OpKind::kAllGather ||
                         call.op == OpKind::kAllToAll;
  const auto ranks = static_cast<std::size_t>(world_size);
  if (has_parts && call.parts.size() != ranks)
    throw InvalidArgument(
        str(name(call.op), ": ", call.parts.size(), " parts for ", ranks, " ranks"));
  if (call.op == OpKind::kAllToAll && call.recv_parts.size() != ranks)
    throw InvalidArgument(str(name(call.op), ": ", call.recv_parts.size(), " parts to receive for ",
                              ranks, " ranks"));
}

}  // namespace

void NcclWork::order(gradring_stream stream, Millis timeout) {
  launch_->order(stream, *work_, timeout);
}

std::shared_ptr<NcclRanks> NcclRanks::join(Communicator& ranks, int device, Millis timeout) {
  return meet(ranks.split(0, ranks.rank(), timeout), device, timeout);
}

std::shared_ptr<NcclRanks> NcclRanks::meet(std::shared_ptr<Communicator> guard, int device,
                                           Millis timeout) {
  const gpu::nccl::UniqueId id = agree(*guard, device, timeout);
  const gpu::NcclPlace place{guard->rank(), guard->world_size(), device};
  auto lane =
      std::make_shared<NcclLane>(std::make_unique<gpu::NcclCommunicator>(id, place), device);
  auto joined = transport::make_here<NcclRanks>(guard, lane);
  carry_out(*guard, OpKind::kBarrier, std::make_shared<NcclStep>(lane, nullptr), timeout);
  return joined;
}

int NcclRanks::device() const {
  return lane_->device().index();
}

NcclWork NcclRanks::submit(const gpu::NcclCall& call, gradring_stream stream, Millis timeout) {
  check_call(call, world_size());
  const Call agreed = call_of(call);
  guard_->check_usable(agreed);
  gpu::StreamView(lane_->device(), stream).refuse_capture();
  auto launch = std::make_shared<NcclLaunch>(lane_, call, stream);
  // One order, in the lane and beside it. In the lane when nothing can be refused any more: what is
  // in there is launched.
  const std::lock_guard lock(submitting_);
  auto work = guard_->submit(agreed, launch, timeout);
  lane_->hand_in(launch);
  return {guard_, std::move(launch), std::move(work)};
}

std::shared_ptr<NcclRanks> NcclRanks::split(std::int64_t color, std::int64_t key, Millis timeout) {
  auto guard = guard_->split(color, key, timeout);
  // NCCL's colors are small: a part is named by the lowest rank in it, as counted here.
  int part = -1;
  gpu::NcclPlace place{0, 1, device()};
  if (guard) {
    const auto members = gather(*guard, rank(), timeout);
    part = *std::min_element(members.begin(), members.end());
    place = {guard->rank(), guard->world_size(), device()};
  }
  // Shared: an interrupt may take us away before the step is carried out.
  auto lane = std::make_shared<std::shared_ptr<NcclLane>>();
  const auto begin = [lane, part, place](gpu::NcclCommunicator& parent) {
    *lane = std::make_shared<NcclLane>(std::make_unique<gpu::NcclCommunicator>(parent, part, place),
                                       place.device);
  };
  carry_out(*guard_, OpKind::kSplit, std::make_shared<NcclStep>(lane_, begin), timeout);
  if (!guard) return nullptr;
  auto joined = transport::make_here<NcclRanks>(guard, *lane);
  carry_out(*guard, OpKind::kBarrier, std::make_shared<NcclStep>(*lane, nullptr), timeout);
  return joined;
}

void NcclRanks::close(Millis timeout) {
  try {
    const auto goodbye = [](gpu::NcclCommunicator& nccl) { nccl.finish(); };
    if (!is_closed())
      carry_out(*guard_, OpKind::kBarrier, std::make_shared<NcclStep>(lane_, goodbye), timeout);
  } catch (const Error&) {
    // Somebody left without a goodbye; so do we.
  }
  guard_->close();  // After this nobody drives the lane.
  lane_->give_up();
}

void NcclRanks::leave() noexcept try {
  if (!guard_->is_here()) return;  // A forked child has no part in it.
  const bool is_well = !guard_->is_closed();
  if (is_well) guard_->close();  // After this nobody drives the lane.
  is_well ? lane_->leave() : lane_->give_up();
} catch (const std::exception&) {
  lane_->give_up();
}

void set_factor(gpu::NcclCall& call, double factor, Rank world_size) {
  if (call.reduce_op == ReduceOp::kAvg) {
    factor /= world_size;
    call.reduce_op = ReduceOp::kSum;
  }
  std::array<std::byte, 8> bits{};
  const auto put = [&](const auto& value) { std::memcpy(bits.data(), &value, sizeof(value)); };
  const auto single = static_cast<float>(factor);
  switch (call.dtype) {
    case DType::kFloat64: put(factor); break;
    case DType::kFloat32: put(single); break;
    case DType::kFloat16: put(kernels::Float16::rounded(single)); break;
    case DType::kBFloat16: put(kernels::BFloat16::rounded(single)); break;
    default:
      throw InvalidArgument(str(name(call.op), ": a factor needs floats, not ", name(call.dtype)));
  }
  call.factor = bits;
}

}  // namespace gradring::collectives
