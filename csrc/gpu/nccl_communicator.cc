#include "gpu/nccl_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "gpu/plugin.h"

namespace gradring::gpu {

namespace {

using nccl::Result;

// How long an abort may keep its caller: kernels see the flag within microseconds, but a driver in
// trouble may never answer.
constexpr Millis kAbortTime{5000};
// How long a goodbye may take: the others of a host have to say it, too.
constexpr Millis kGoodbyeTime{2000};
constexpr Millis kGoodbyeNap{1};

bool is_float(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || is_half(dtype);
}

bool reduces(OpKind op) {
  return op == OpKind::kAllReduce || op == OpKind::kReduceScatter || op == OpKind::kReduce;
}

std::optional<nccl::DataType> type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return nccl::DataType::kFloat64;
    case DType::kFloat32: return nccl::DataType::kFloat32;
    case DType::kFloat16: return nccl::DataType::kFloat16;
    case DType::kBFloat16: return nccl::DataType::kBfloat16;
    case DType::kInt8: return nccl::DataType::kInt8;
    case DType::kInt32: return nccl::DataType::kInt32;
    case DType::kInt64: return nccl::DataType::kInt64;
    case DType::kUInt8:
    case DType::kBool: return nccl::DataType::kUint8;
    case DType::kInt16: break;
  }
  return std::nullopt;
}

// Of bools, 0 or 1: a sum is their or, a product their and.
std::optional<nccl::RedOp> operator_of(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum: return is_bool ? nccl::RedOp::kMax : nccl::RedOp::kSum;
    case ReduceOp::kProd: return is_bool ? nccl::RedOp::kMin : nccl::RedOp::kProd;
    case ReduceOp::kMin: return nccl::RedOp::kMin;
    case ReduceOp::kMax: return nccl::RedOp::kMax;
    case ReduceOp::kAvg:
      if (is_float(dtype)) return nccl::RedOp::kAvg;
      break;
    case ReduceOp::kBand:
      if (is_bool) return nccl::RedOp::kMin;
      break;
    case ReduceOp::kBor:
      if (is_bool) return nccl::RedOp::kMax;
      break;
    case ReduceOp::kBxor: break;
  }
  return std::nullopt;
}

// Whether NCCL has sent all that it had, and heard that the others of this host leave too.
bool says_goodbye(const nccl::Functions& call, nccl::Comm comm) {
  const Time deadline = Clock::now() + kGoodbyeTime;
  Result state = call.CommFinalize(comm);
  if (state != Result::kSuccess && state != Result::kInProgress) return false;
  while (call.CommGetAsyncError(comm, &state) == Result::kSuccess) {
    if (state != Result::kInProgress) return state == Result::kSuccess;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kGoodbyeNap);
  }
  return false;
}

}  // namespace

bool nccl_knows(const NcclCall& call) {
  if (call.factor && !(is_float(call.dtype) && call.reduce_op == ReduceOp::kSum)) return false;
  if (!reduces(call.op))
    return !call.factor && call.op <= OpKind::kRecv && call.op != OpKind::kBarrier;
  return type_of(call.dtype) && operator_of(call.dtype, call.reduce_op);
}

// The library's own state of a communicator. `comm` is there once is_born; after is_given_up nobody
// but the thread that aborts it may use it.
struct NcclCommunicator::Handle {
  std::mutex mutex;
  std::condition_variable changed;
  nccl::Comm comm = nullptr;
  Result birth = Result::kInProgress;
  bool is_born = false;
  bool is_settled = false;
  bool is_finishing = false;
  bool is_given_up = false;
  std::vector<std::shared_ptr<Handle>> parts;  // NCCL writes into them while this one splits.
};

nccl::UniqueId NcclCommunicator::make_id() {
  const NcclLibrary& library = nccl_library();
  nccl::UniqueId id{};
  if (const Result result = library.call.GetUniqueId(&id); result != Result::kSuccess)
    throw NcclFailed(result, str("ncclGetUniqueId: ", nccl_text(library, result, nullptr)));
  return id;
}

// NCCL takes the thread's device, and the caller's is not ours to change; besides, a thread of its
// own may get stuck where this one must not.
NcclCommunicator::NcclCommunicator(const nccl::UniqueId& id, const NcclPlace& place)
    : library_(nccl_library()), place_(place), handle_(std::make_shared<Handle>()) {
  const auto* runtime = devices().runtime;
  std::thread([handle = handle_, call = library_.call, id, place, runtime] {
    nccl::Config config;
    nccl::Comm comm = nullptr;
    Result result = Result::kUnhandledCudaError;
    if (runtime->use_device(place.device) == GRADRING_GPU_OK)
      result = call.CommInitRankConfig(&comm, place.world_size, id, place.rank, &config);
    const std::lock_guard lock(handle->mutex);
    if (handle->is_given_up) {
      if (comm != nullptr) call.CommAbort(comm);
      return;
    }
    handle->comm = comm;
    handle->birth = result;
    handle->is_born = true;
  }).detach();
}

NcclCommunicator::NcclCommunicator(NcclCommunicator& parent, int color, const NcclPlace& place)
    : library_(parent.library_), place_(place), handle_(std::make_shared<Handle>()) {
  nccl::Config config;
  parent.handle_->parts.push_back(handle_);
  handle_->is_born = true;  // What NCCL writes into `comm` later is there when the parent settles.
  handle_->birth = Result::kSuccess;
  parent.check(library_.call.CommSplit(parent.comm(), color, place.rank, &handle_->comm, &config),
               "ncclCommSplit");
}

NcclCommunicator::~NcclCommunicator() {
  abort();
}

nccl::Comm NcclCommunicator::comm() const {
  const std::lock_guard lock(handle_->mutex);
  if (handle_->is_given_up) throw Closed("this NCCL communicator was aborted");
  return handle_->comm;
}

void NcclCommunicator::check(Result result, const char* what) {
  if (result == Result::kSuccess) return;
  const std::lock_guard lock(handle_->mutex);
  handle_->is_settled = false;
  if (result == Result::kInProgress) return;
  const nccl::Comm comm = handle_->is_given_up ? nullptr : handle_->comm;
  throw NcclFailed(result, str(what, ": ", nccl_text(library_, result, comm)));
}

bool NcclCommunicator::settle() {
  const std::lock_guard lock(handle_->mutex);
  if (handle_->is_given_up) throw Closed("this NCCL communicator was aborted");
  if (!handle_->is_born) return false;
  Result state = handle_->birth;
  if (state == Result::kSuccess || state == Result::kInProgress) {
    if (handle_->comm == nullptr) return true;  // A split that this rank is in no part of.
    const Result asked = library_.call.CommGetAsyncError(handle_->comm, &state);
    if (asked != Result::kSuccess) state = asked;
  }
  handle_->is_settled = state == Result::kSuccess;
  if (state == Result::kInProgress) return false;
  if (state != Result::kSuccess)
    throw NcclFailed(state, str("NCCL: ", nccl_text(library_, state, handle_->comm)));
  if (handle_->is_finishing) {
    library_.call.CommDestroy(handle_->comm);
    handle_->is_given_up = true;
  }
  return true;
}

void NcclCommunicator::finish() {
  check(library_.call.CommFinalize(comm()), "ncclCommFinalize");
  const std::lock_guard lock(handle_->mutex);
  handle_->is_finishing = true;
}

// What is given up is ended by a thread of its own, which may get stuck in NCCL.
void NcclCommunicator::end(const char* what, Millis time,
                           std::function<void(nccl::Comm)> how) noexcept try {
  const auto handle = handle_;
  std::unique_lock lock(handle->mutex);
  if (std::exchange(handle->is_given_up, true) || handle->comm == nullptr) return;
  const auto* runtime = devices().runtime;
  std::thread([handle, comm = handle->comm, device = place_.device, runtime, how] {
    static_cast<void>(runtime->use_device(device));  // NCCL would get device 0.
    how(comm);
    const std::lock_guard done(handle->mutex);
    handle->comm = nullptr;
    handle->changed.notify_all();
  }).detach();
  if (!handle->changed.wait_for(lock, time, [&] { return handle->comm == nullptr; }))
    log_warning(place_.rank, str(what, " does not return; its kernels may still run"));
} catch (...) {
  // No memory for a thread: nothing more can be done for it.
}

void NcclCommunicator::abort() noexcept {
  end("ncclCommAbort", kAbortTime, library_.call.CommAbort);
}

void NcclCommunicator::leave() noexcept {
  {
    const std::lock_guard lock(handle_->mutex);
    if (!handle_->is_settled) return;
  }
  end("ncclCommFinalize", kGoodbyeTime + kAbortTime, [call = library_.call](nccl::Comm comm) {
    says_goodbye(call, comm) ? call.CommDestroy(comm) : call.CommAbort(comm);
  });
}

template <typename Calls>
void NcclCommunicator::in_group(const Calls& calls) {
  check(library_.call.GroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    library_.call.GroupEnd();  // What the group has so far fails with it.
    throw;
  }
  check(library_.call.GroupEnd(), "ncclGroupEnd");
}

void NcclCommunicator::start(const NcclCall& call, gradring_stream stream) {
  if (!nccl_knows(call))
    throw InvalidArgument(str("NCCL has no ", name(call.op), " of ", name(call.dtype),
                              reduces(call.op) ? str(" with ", name(call.reduce_op)) : ""));
  GRADRING_ASSERT(handle_->is_settled);
  if (!reduces(call.op)) {
    if (call.op == OpKind::kAllGather || call.op == OpKind::kBroadcast)
      return gather_parts(call, stream);
    return in_group([&] { exchange(call, stream); });
  }
  if (!call.factor) return reduce(call, *operator_of(call.dtype, call.reduce_op), stream);
  nccl::RedOp scaled{};
  std::array<std::byte, 8> factor = *call.factor;
  check(library_.call.RedOpCreatePreMulSum(&scaled, factor.data(), *type_of(call.dtype),
                                           nccl::Residence::kHostImmediate, comm()),
        "ncclRedOpCreatePreMulSum");
  // Read when the call is made, not when it runs.
  const auto free_operator = [&] { library_.call.RedOpDestroy(scaled, comm()); };
  try {
    reduce(call, scaled, stream);
  } catch (...) {
    try {
      free_operator();
    } catch (const Error&) {  // Given up meanwhile. What went wrong first is told.
    }
    throw;
  }
  free_operator();
}

void NcclCommunicator::reduce(const NcclCall& call, nccl::RedOp op, gradring_stream stream) {
  const nccl::DataType type = *type_of(call.dtype);
  if (call.op == OpKind::kAllReduce)
    check(library_.call.AllReduce(call.input, call.output, call.count, type, op, comm(), stream),
          "ncclAllReduce");
  else if (call.op == OpKind::kReduce)
    check(library_.call.Reduce(call.input, call.output, call.count, type, op, call.root, comm(),
                               stream),
          "ncclReduce");
  else
    scatter_parts(call, op, stream);
}

void NcclCommunicator::scatter_parts(const NcclCall& call, nccl::RedOp op, gradring_stream stream) {
  const nccl::DataType type = *type_of(call.dtype);
  const std::uint64_t first = call.parts.at(0);
  if (std::all_of(call.parts.begin(), call.parts.end(), [&](auto part) { return part == first; })) {
    check(library_.call.ReduceScatter(call.input, call.output, first, type, op, comm(), stream),
          "ncclReduceScatter");
    return;
  }
  // NCCL knows parts of one size only: otherwise each is a reduction of its own.
  in_group([&] {
    const std::byte* from = call.input;
    for (Rank root = 0; root < place_.world_size; ++root) {
      const std::uint64_t part = call.parts[static_cast<std::size_t>(root)];
      if (part > 0)
        check(library_.call.Reduce(from, root == place_.rank ? call.output : nullptr, part, type,
                                   op, root, comm(), stream),
              "ncclReduce");
      from += part * item_bytes(call.dtype);
    }
  });
}

// Nothing is added here, so bytes will do for every type.
void NcclCommunicator::gather_parts(const NcclCall& call, gradring_stream stream) {
  const std::size_t item = item_bytes(call.dtype);
  const auto broadcast = [&](const std::byte* from, std::byte* to, std::uint64_t count, Rank root) {
    check(library_.call.Broadcast(from, to, count * item, nccl::DataType::kInt8, root, comm(),
                                  stream),
          "ncclBroadcast");
  };
  if (call.op == OpKind::kBroadcast) {
    const bool is_root = call.root == place_.rank;
    return broadcast(is_root ? call.input : call.output,
                     is_root && call.output == nullptr
                         ? const_cast<std::byte*>(call.input)  // In place: read only.
                         : call.output,
                     call.count, call.root);
  }
  const std::uint64_t first = call.parts.at(0);
  if (std::all_of(call.parts.begin(), call.parts.end(), [&](auto part) { return part == first; })) {
    check(library_.call.AllGather(call.input, call.output, first * item, nccl::DataType::kInt8,
                                  comm(), stream),
          "ncclAllGather");
    return;
  }
  in_group([&] {
    std::byte* to = call.output;
    for (Rank root = 0; root < place_.world_size; ++root) {
      const std::uint64_t part = call.parts[static_cast<std::size_t>(root)];
      if (part > 0) broadcast(root == place_.rank ? call.input : to, to, part, root);
      to += part * item;
    }
  });
}

void NcclCommunicator::message(bool is_recv, const std::byte* at, std::uint64_t bytes, Rank peer,
                               gradring_stream stream) {
  if (bytes == 0) return;
  if (is_recv)
    check(library_.call.Recv(const_cast<std::byte*>(at), bytes, nccl::DataType::kInt8, peer, comm(),
                             stream),
          "ncclRecv");
  else
    check(library_.call.Send(at, bytes, nccl::DataType::kInt8, peer, comm(), stream), "ncclSend");
}

// Inside a group, so that what is sent and received in one call waits for nothing in between.
void NcclCommunicator::exchange(const NcclCall& call, gradring_stream stream) {
  const std::size_t item = item_bytes(call.dtype);
  const std::uint64_t bytes = call.count * item;
  const bool is_root = call.root == place_.rank;
  const auto with_each = [&](bool is_recv, const std::byte* at, const auto& bytes_of) {
    for (Rank peer = 0; peer < place_.world_size; ++peer) {
      message(is_recv, at, bytes_of(peer), peer, stream);
      at += bytes_of(peer);
    }
  };
  const auto same = [&](Rank) { return bytes; };
  switch (call.op) {
    case OpKind::kSend: return message(false, call.input, bytes, call.root, stream);
    case OpKind::kRecv: return message(true, call.output, bytes, call.root, stream);
    case OpKind::kGather:
      message(false, call.input, bytes, call.root, stream);
      if (is_root) with_each(true, call.output, same);
      return;
    case OpKind::kScatter:
      if (is_root) with_each(false, call.input, same);
      return message(true, call.output, bytes, call.root, stream);
    default: break;  // all_to_all.
  }
  with_each(false, call.input,
            [&](Rank peer) { return call.parts[static_cast<std::size_t>(peer)] * item; });
  with_each(true, call.output,
            [&](Rank peer) { return call.recv_parts[static_cast<std::size_t>(peer)] * item; });
}

}  // namespace gradring::gpu
