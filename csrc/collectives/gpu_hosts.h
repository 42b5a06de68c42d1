// GpuHosts: all_reduce where every host has several GPUs, a rank each: summed up inside the host by
// the GPUs themselves (NCCL), staged over the network between ranks of the same place on every
// host, each with its share, and spread inside the hosts again. The network carries 2 S (h-1)/h
// bytes a host, through all its ranks at once. The order of additions is its own: the host's, as
// NCCL adds, then the hosts' (plan.h). All in the order of the user's stream. Callable from one
// thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/staged.h"

namespace gradring::collectives {

// The ranks of one host among themselves. Everything only comes into `stream`; elements are those
// of one rank's share, and `input` may be what lies at this rank's share of `output`, and the other
// way round.
class LocalGpus {
 public:
  virtual ~LocalGpus() = default;
  virtual Rank rank() const = 0;
  virtual Rank ranks() const = 0;
  virtual void reduce_scatter(const void* input, void* output, std::uint64_t count_each,
                              const Request& how, gradring_stream stream) = 0;
  virtual void all_gather(const void* input, void* output, std::uint64_t count_each, DType dtype,
                          gradring_stream stream) = 0;
};

class GpuHosts {
 public:
  // An all_reduce in flight: its staged parts, and what comes after them on the user's stream.
  struct InFlight {
    std::vector<StagedWork> parts;
    std::unique_ptr<gpu::Event> end;  // None: there was nothing to do.
    // Until the result is there. Throws what went wrong, or TimedOut.
    void wait(Millis timeout);
  };

  // `across`: the ranks with this one's local rank, one of every host. As many ranks on every host.
  GpuHosts(std::shared_ptr<Communicator> all, std::shared_ptr<Communicator> across,
           std::unique_ptr<LocalGpus> local, const gradring_gpu_api& api,
           const Staged::Options& options);

  // Sums, averages, products, minima and maxima, as far as the GPUs know them. What comes into the
  // stream from now on comes after the result; the host is not blocked where the device can wait on
  // memory.
  InFlight all_reduce(const Operation& operation, const Staged::Place& place, Millis timeout);

 private:
  Rank ranks_;
  std::unique_ptr<LocalGpus> local_;
  Staged all_;
  Staged across_;
};

}  // namespace gradring::collectives
