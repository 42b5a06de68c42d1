// NcclRanks: the ranks of a communicator, talking through NCCL. NCCL moves the bytes; a
// communicator of ours beside it keeps the order, the deadlines, the records and the news of lost
// ranks, so that NCCL's operations fail as all others do. Callable from any thread.
#pragma once

#include <memory>
#include <mutex>

#include "collectives/communicator/communicator.h"
#include "gpu/nccl_communicator.h"

namespace gradring::collectives {

class NcclLane;
class NcclLaunch;

// An operation of NCCL's in flight.
class NcclWork {
 public:
  NcclWork(std::shared_ptr<Communicator> guard, std::shared_ptr<NcclLaunch> launch,
           std::shared_ptr<Work> work)
      : guard_(std::move(guard)), launch_(std::move(launch)), work_(std::move(work)) {}

  // What is put into `stream` from now on comes after the operation. Blocks only until the
  // operation is in its own stream. Throws what has failed it by then.
  void order(gradring_stream stream, Millis timeout);
  // Until it is done. Throws any public error.
  void wait(Millis timeout) { guard_->wait(*work_, timeout); }
  bool is_done() const { return work_->is_done(); }

 private:
  std::shared_ptr<Communicator> guard_;
  std::shared_ptr<NcclLaunch> launch_;
  std::shared_ptr<Work> work_;
};

class NcclRanks {
 public:
  // Collective. Every rank names its own device; all need the same NCCL. Throws DeviceError on
  // every rank where one rank cannot take part, and any other public error.
  static std::shared_ptr<NcclRanks> join(Communicator& ranks, int device, Millis timeout);
  // The same with a communicator that nobody else uses.
  static std::shared_ptr<NcclRanks> meet(std::shared_ptr<Communicator> guard, int device,
                                         Millis timeout);
  NcclRanks(std::shared_ptr<Communicator> guard, std::shared_ptr<NcclLane> lane)
      : guard_(std::move(guard)), lane_(std::move(lane)) {}
  ~NcclRanks() { leave(); }

  Rank rank() const { return guard_->rank(); }
  Rank world_size() const { return guard_->world_size(); }
  int device() const;
  const std::shared_ptr<NcclLane>& lane() const { return lane_; }
  Millis timeout() const { return guard_->timeout(); }
  bool is_closed() const { return guard_->is_closed(); }

  // Runs after what is in `stream` now, in a stream of its own; its memory must live until it is
  // done. Throws InvalidArgument, and nothing has begun, for what nccl_knows() not and while
  // `stream` is captured.
  NcclWork submit(const gpu::NcclCall& call, gradring_stream stream, Millis timeout);

  // Collective. As Communicator::split.
  std::shared_ptr<NcclRanks> split(std::int64_t color, std::int64_t key, Millis timeout);
  // Collective where nothing has failed: after the operations under way. Then and otherwise nothing
  // of NCCL's is left running here.
  void close(Millis timeout);
  // Not collective. Where nothing has failed, what NCCL still has of what is done is sent first,
  // for two seconds at most. Nobody else uses it any more.
  void leave() noexcept;

 private:
  std::shared_ptr<Communicator> guard_;
  std::shared_ptr<NcclLane> lane_;
  std::mutex submitting_;  // Held while an operation is handed in.
};

// Multiplies each rank's values with `factor` before they are added; the operator must be sum or
// avg, of floats, and stays what it means.
void set_factor(gpu::NcclCall& call, double factor, Rank world_size);

}  // namespace gradring::collectives
