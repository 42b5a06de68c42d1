// GpuHosts: all_reduce where every host has several GPUs, a rank each: summed up inside the host by
// the GPUs themselves (NCCL), staged over the network between ranks of the same place on every
// host, each with its share, and spread inside the hosts again. The network carries 2 S (h-1)/h
// bytes a host, through all its ranks at once. The order of additions is its own: the host's, as
// NCCL adds, then the hosts' (plan.h). To the ranks it is one operation of their communicator.
// Callable from any thread.
#pragma once

#include <memory>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/device/gpu_launch.h"
#include "collectives/device/staged_lane.h"
#include "gpu/nccl_communicator.h"

namespace gradring::collectives {

// The GPUs of one host. All is called by the thread that drives the communicator of all ranks, but
// for what is said otherwise.
class LocalGpus {
 public:
  virtual ~LocalGpus() = default;
  virtual const gpu::Device& device() const = 0;  // This and the next two from any thread.
  virtual Rank rank() const = 0;
  virtual Rank ranks() const = 0;
  // Where their operations run, in the order in which they are started.
  virtual gpu::StreamView stream() const = 0;
  virtual void start(const gpu::NcclCall& call) = 0;
  // True when all that was started is in the stream. Throws what went wrong, also later.
  virtual bool push() = 0;
  // Ends what is under way on this rank.
  virtual void give_up() noexcept = 0;
  // The last call, when nobody drives any more. What has been done reaches the others, unless it
  // was given up.
  virtual void leave() noexcept = 0;
};

class HostsReduction;

// An all_reduce in flight. The caller keeps the device memory alive until is_over().
class HostsWork {
 public:
  HostsWork(std::shared_ptr<Communicator> ranks, std::shared_ptr<HostsReduction> reduction,
            std::shared_ptr<Work> work)
      : ranks_(std::move(ranks)), reduction_(std::move(reduction)), work_(std::move(work)) {}

  // As NcclWork. order() blocks until the network is done.
  void order(gradring_stream stream, Millis timeout);
  void wait(Millis timeout) { ranks_->wait(*work_, timeout); }
  bool is_done() const { return work_->is_done(); }
  // Done, and no stream of ours touches its memory any more.
  bool is_over() const;

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<HostsReduction> reduction_;
  std::shared_ptr<Work> work_;
};

class GpuHosts {
 public:
  // Collective. `host_of`: by rank, the number of its host, as many ranks of each, two hosts at
  // least. Throws DeviceError on every rank where the ranks of one host do not meet in NCCL, and
  // any other public error.
  static std::unique_ptr<GpuHosts> join(const std::shared_ptr<Communicator>& ranks, int device,
                                        const std::vector<Rank>& host_of, Millis timeout);
  // `across`: the ranks with this one's local rank, one of every host.
  GpuHosts(std::shared_ptr<Communicator> ranks, std::unique_ptr<Level> across,
           std::unique_ptr<LocalGpus> local, const StagedLane::Options& options = {});
  ~GpuHosts();
  GpuHosts(const GpuHosts&) = delete;
  GpuHosts& operator=(const GpuHosts&) = delete;

  int device() const;
  // Whether it has this operation; where not, on no rank. Not: what is no all_reduce, 16-bit
  // integers, bitwise operators but and/or of bools, and what asks for an algorithm or an order.
  static bool knows(const Operation& operation);
  // Of what it knows, on its device; after what is in `stream` now.
  HostsWork submit(const Operation& operation, gradring_stream stream, Millis timeout);

  struct Shared;  // With what is in flight.

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace gradring::collectives
