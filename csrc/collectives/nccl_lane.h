// NcclLane: one NCCL communicator with its stream, and the operations on their way into it, in
// order. Operations are handed in by any thread; everything else happens on the thread that drives
// the communicator beside it, which advances them one by one and launches the next ones meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>

#include "collectives/communicator.h"
#include "gpu/nccl_communicator.h"
#include "gpu/plugin.h"

namespace gradring::collectives {

// An event on a device, destroyed with its owner.
class DeviceEvent {
 public:
  explicit DeviceEvent(int device);
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void record(gradring_stream stream);
  void hold(gradring_stream stream) const;  // The stream goes on once this is reached.
  bool is_reached() const;

 private:
  int device_;
  gradring_event event_ = nullptr;
};

class NcclLaunch;

class NcclLane : public std::enable_shared_from_this<NcclLane> {
 public:
  NcclLane(std::unique_ptr<gpu::NcclCommunicator> nccl, int device);
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  int device() const { return device_; }
  gpu::NcclCommunicator& nccl() { return *nccl_; }

  void hand_in(std::shared_ptr<NcclLaunch> launch);
  // Launches what is waiting, as far as NCCL takes it. Throws what NCCL says of any of it, unless
  // that may be the echo of a lost rank: then only when the monitor had time to name it.
  // True when NCCL has taken up all that it was given.
  bool push();
  void give_up() noexcept;

 private:
  bool push_now();

  const int device_;
  gradring_stream stream_ = nullptr;
  std::unique_ptr<gpu::NcclCommunicator> nccl_;
  std::shared_ptr<NcclLaunch> taken_;  // By NCCL, but perhaps not yet in the stream.
  std::exception_ptr echo_;            // Of what may be a lost rank.
  Time echo_until_{};

  std::mutex mutex_;  // Guards the next.
  std::deque<std::shared_ptr<NcclLaunch>> waiting_;
};

// One operation: done when its event is reached.
class NcclLaunch : public ForeignOperation {
 public:
  NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call, gradring_stream after);

  bool advance() override;
  void give_up() noexcept override;

  // From any thread: until it is in its stream or has failed, but not longer than `time`. True: it
  // is there.
  bool wait_until_launched(Millis time);
  void hold(gradring_stream stream) const { done_.hold(stream); }

 private:
  friend class NcclLane;
  void note_launched();

  const std::shared_ptr<NcclLane> lane_;
  const gpu::NcclCall call_;
  DeviceEvent ready_;  // What was in the user's stream before.
  DeviceEvent done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_launched_ = false;
  bool is_over_ = false;
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
