// NcclLane: one NCCL communicator with its stream, and the operations on their way into it, in
// order. Operations are handed in by any thread; everything else happens on the thread that drives
// the communicator beside it, which advances them one by one and launches the next ones meanwhile.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "collectives/communicator/communicator.h"
#include "collectives/device/gpu_launch.h"
#include "gpu/nccl_communicator.h"
#include "gpu/stream.h"

namespace gradring::collectives {

class NcclLaunch;

class NcclLane : public std::enable_shared_from_this<NcclLane> {
 public:
  NcclLane(std::unique_ptr<gpu::NcclCommunicator> nccl, int device);

  const gpu::Device& device() const { return device_; }
  gpu::StreamView stream() const { return stream_; }
  gpu::NcclCommunicator& nccl() { return *nccl_; }

  void hand_in(std::shared_ptr<NcclLaunch> launch);
  // Launches what is waiting, as far as NCCL takes it. Throws what NCCL says of any of it, unless
  // that may be the echo of a lost rank: then only when the monitor had time to name it.
  // True when NCCL has taken up all that it was given.
  bool push();
  void give_up() noexcept;
  // The last call, when nobody drives any more. What NCCL has of what is done reaches the others
  // first, unless something has failed.
  void leave() noexcept;

 private:
  bool push_now();

  const gpu::Device device_;
  gpu::Stream stream_;
  std::unique_ptr<gpu::NcclCommunicator> nccl_;  // Ends before the stream that its kernels are in.
  std::shared_ptr<NcclLaunch> taken_;            // By NCCL, but perhaps not yet in the stream.
  std::exception_ptr echo_;                      // Of what may be a lost rank.
  Time echo_until_{};

  std::mutex mutex_;  // Guards the next two.
  bool is_over_ = false;
  std::deque<std::shared_ptr<NcclLaunch>> waiting_;
};

// One operation: done when its end is passed.
class NcclLaunch : public ForeignOperation {
 public:
  // After what is in `after` now.
  NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call, gradring_stream after);
  // After what is in the lane's stream when its turn comes.
  NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call);

  bool advance() override;
  void give_up() noexcept override;

  // From any thread.
  void order(gradring_stream stream, const Work& work, Millis timeout) {
    end_.order({lane_->device(), stream}, work, timeout);
  }

 private:
  friend class NcclLane;

  const std::shared_ptr<NcclLane> lane_;
  const gpu::NcclCall call_;
  gpu::Event ready_;  // What was in the user's stream before. Never recorded: nothing.
  GpuLaunch end_;
};

// Something only NCCL has to do: meeting, splitting, saying goodbye.
class NcclStep : public ForeignOperation {
 public:
  NcclStep(std::shared_ptr<NcclLane> lane, std::function<void(gpu::NcclCommunicator&)> begin)
      : lane_(std::move(lane)), begin_(std::move(begin)) {}

  bool advance() override;
  void give_up() noexcept override { lane_->give_up(); }

 private:
  const std::shared_ptr<NcclLane> lane_;
  std::function<void(gpu::NcclCommunicator&)> begin_;  // Once NCCL is free; empty when called.
};

}  // namespace gradring::collectives
