// Staged: collectives on the memory of GPUs without NCCL: rounds of it go down to pinned host
// memory, through the communicator's own collectives, and up again, all three at once for different
// rounds. Stream-ordered for the user: what is in the stream at the call comes first, and a stream
// can be made to wait for the result without blocking the host. The bits are those of the same call
// on host memory. Callable from any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "collectives/communicator/communicator.h"
#include "collectives/device/staged_lane.h"

namespace gradring::collectives {

// A staged operation in flight. The caller keeps the device memory alive until is_over().
class StagedWork {
 public:
  StagedWork(std::shared_ptr<Communicator> communicator, std::shared_ptr<Work> work,
             std::shared_ptr<StagedLane> lane, std::shared_ptr<StagedJob> job)
      : communicator_(std::move(communicator)),
        work_(std::move(work)),
        lane_(std::move(lane)),
        job_(std::move(job)) {}

  // What comes into `stream` (of the same device) from now on comes after the result. Throws what
  // the operation is known to have failed with. Blocks the host only where the device cannot wait
  // on memory: until the last round is on its way up, `timeout` at the most (TimedOut).
  void wait(gpu::StreamView stream, Millis timeout);
  gpu::StreamView view(gradring_stream stream) const { return {lane_->device(), stream}; }
  // What `stream` has been given so far.
  std::unique_ptr<gpu::Event> mark(gradring_stream stream) const;
  // Until the result is on the device. Throws what went wrong; TimedOut: it goes on.
  void wait(Millis timeout);
  // The result is there, or never will be.
  bool is_done() const;
  // Done, and no stream of ours touches the operation's memory any more.
  bool is_over() const;

 private:
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Work> work_;
  std::shared_ptr<StagedLane> lane_;
  std::shared_ptr<StagedJob> job_;
};

class Staged {
 public:
  using Options = StagedLane::Options;

  // Slots are larger, and fewer, where the communicator reduces in segments (Hierarchy).
  Staged(std::shared_ptr<Communicator> communicator, const gradring_gpu_api& api,
         const Options& options);
  Staged(std::shared_ptr<Communicator> communicator, const gradring_gpu_api& api);

  struct Place {
    int device = 0;
    gradring_stream stream = nullptr;  // The user's.
    // On the way through host memory and network; float32, float16 and bfloat16 are cast to each
    // other on the device.
    std::optional<DType> wire_dtype = std::nullopt;
  };
  // `operation`: as for Communicator::submit, its input and output on the device. Checked by the
  // caller, as there. Throws DeviceError; what happens later is thrown by the work's wait().
  StagedWork submit(const Operation& operation, const Place& place, Millis timeout);

  // How long each stage of `operation` takes by itself, and all of them together: what overlapping
  // gains is their sum over the whole. Collective; nothing else may be in flight. The operation's
  // memory has the result twice over in the end.
  struct Stages {
    double down_s = 0;
    double network_s = 0;
    double up_s = 0;
    double whole_s = 0;
    std::uint32_t rounds = 0;
  };
  Stages measure(const Operation& operation, int device, Millis timeout);

  // "staged through 6 slots of 4 MiB of pinned memory; streams wait on memory".
  std::string describe(int device);

 private:
  std::shared_ptr<StagedLane> lane(int device);
  std::vector<StagedRound> rounds_of(Operation& whole) const;

  const std::shared_ptr<Communicator> communicator_;
  const gradring_gpu_api& api_;
  const Options options_;
  std::mutex submit_mutex_;  // Jobs are begun in the order in which the communicator takes them up.
  std::mutex lanes_mutex_;   // Guards lanes_.
  std::map<int, std::shared_ptr<StagedLane>> lanes_;
};

}  // namespace gradring::collectives
