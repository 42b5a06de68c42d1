// One rank's end of an NCCL communicator, never blocking: a call is started, and settle() is asked
// until NCCL has taken it up; how long to ask is for the caller to decide, who has the deadline.
// When the work itself is done, an event on its stream tells. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/call.h"
#include "base/clock.h"
#include "base/error.h"
#include "gpu/api.h"
#include "gpu/nccl_library.h"

namespace gradring::gpu {

// NCCL said no; `result` tells a lost peer from a fault of this rank.
struct NcclFailed : DeviceError {
  NcclFailed(nccl::Result code, const std::string& text) : DeviceError(text), result(code) {}
  nccl::Result result;
};

// What to move and reduce; extents as in collectives/plan/operation.h. Device memory that outlives
// it.
struct NcclCall {
  OpKind op = OpKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Rank root = 0;            // Of send and recv: the peer.
  std::uint64_t count = 0;  // Elements; of gather and scatter: each rank's.
  // Elements of each rank's part. reduce_scatter, all_gather, all_to_all (what is sent to each).
  std::vector<std::uint64_t> parts;
  std::vector<std::uint64_t> recv_parts;  // all_to_all.
  // sum: what each rank multiplies its values with first, as one number of `dtype`.
  std::optional<std::array<std::byte, 8>> factor;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// Whether NCCL knows this operation with the meaning it has here. Not: 16-bit integers, averages of
// integers, bitwise operators but and/or of bools, factors but for sums of floats.
bool nccl_knows(const NcclCall& call);

struct NcclPlace {
  Rank rank = 0;
  Rank world_size = 1;
  int device = 0;
};

class NcclCommunicator {
 public:
  static nccl::UniqueId make_id();

  // Begins to meet the others; over when settle() says so.
  NcclCommunicator(const nccl::UniqueId& id, const NcclPlace& place);
  // Begins to split `parent`, whose settle() tells when that is over. Every rank calls it, with a
  // color from 0, or with -1 to be in no part.
  NcclCommunicator(NcclCommunicator& parent, int color, const NcclPlace& place);
  ~NcclCommunicator();  // Aborts unless finish() was settled, or leave() called.
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // False while NCCL is at the last call. Throws NcclFailed.
  bool settle();
  // Needs a settle() that was true; so does what `call` was started for to be in the stream.
  void start(const NcclCall& call, gradring_stream stream);
  // Says goodbye; when it is settled, nothing is left to abort.
  void finish();
  // The last call, where nothing has failed: what has been started reaches the others, though none
  // of them may be there to hear it: aborts when two seconds have passed. In bounded time. Aborts
  // nothing, and says nothing, where the last settle() was not true.
  void leave() noexcept;
  // Ends everything that is under way on this rank, in bounded time.
  void abort() noexcept;

  const NcclPlace& place() const { return place_; }

 private:
  struct Handle;

  nccl::Comm comm() const;
  void check(nccl::Result result, const char* what);
  void end(const char* what, Millis time, std::function<void(nccl::Comm)> how) noexcept;
  void reduce(const NcclCall& call, nccl::RedOp op, gradring_stream stream);
  void scatter_parts(const NcclCall& call, nccl::RedOp op, gradring_stream stream);
  void gather_parts(const NcclCall& call, gradring_stream stream);
  void exchange(const NcclCall& call, gradring_stream stream);
  void message(bool is_recv, const std::byte* at, std::uint64_t bytes, Rank peer,
               gradring_stream stream);
  template <typename Calls>
  void in_group(const Calls& calls);

  const NcclLibrary& library_;
  NcclPlace place_;
  std::shared_ptr<Handle> handle_;  // Shared with threads that may be stuck in NCCL.
};

}  // namespace gradring::gpu
