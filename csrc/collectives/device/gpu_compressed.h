// GpuCompressed: compressed sums (engine/compressed.h) of vectors on GPUs. What is sent is encoded
// on the GPU, what comes is added up and decoded there, and residuals stay there: only encoded
// bytes cross the bus, through pinned memory. The schedule, the bytes on the wire and the bits are
// those of vectors in host memory, so ranks with either take part in one operation. Vector and
// residual are written when the whole sum is there: what fails before leaves both as they were.
// Callable from any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/engine/compressed.h"
#include "gpu/stream.h"

namespace gradring::collectives {

class CompressedJob;
class CompressedLane;

// A sum in flight. The caller keeps the device memory alive until is_over().
class GpuCompressedWork {
 public:
  GpuCompressedWork(std::shared_ptr<Communicator> ranks, std::shared_ptr<CompressedLane> lane,
                    std::shared_ptr<CompressedJob> job, std::shared_ptr<Work> work)
      : ranks_(std::move(ranks)),
        lane_(std::move(lane)),
        job_(std::move(job)),
        work_(std::move(work)) {}

  // What is put into `stream` (of the same device) from now on comes after the result. Blocks until
  // the ranks are done. Throws what has failed it by then; TimedOut: it goes on.
  void order(gradring_stream stream, Millis timeout);
  // Until the result is on the device. Throws as above.
  void wait(Millis timeout);
  // The result is there, or never will be.
  bool is_done() const;
  // Done, and no stream of ours touches its memory any more.
  bool is_over() const;

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<CompressedLane> lane_;
  std::shared_ptr<CompressedJob> job_;
  std::shared_ptr<Work> work_;
};

class GpuCompressed {
 public:
  GpuCompressed(std::shared_ptr<Communicator> ranks, const gradring_gpu_api& api)
      : ranks_(std::move(ranks)), api_(api) {}

  // Whether this rank's plugin can, on this device; other ranks may do as they like.
  bool knows(const Compressed& what, int device);

  struct Place {
    int device = 0;
    std::vector<gradring_stream> streams;  // What is in them now comes first.
  };
  // Of what it knows, values and residual on the device. Throws DeviceError where there is no such
  // device; what goes wrong there later is thrown by the work, on every rank.
  GpuCompressedWork submit(const Compressed& what, const Place& place, Millis timeout);

 private:
  // What the plugin is compiled for.
  struct Compiled {
    bool streaming = false;
    bool codecs = false;
  };
  Compiled compiled_for(int device);
  std::shared_ptr<CompressedLane> lane(int device);

  const std::shared_ptr<Communicator> ranks_;
  const gradring_gpu_api& api_;
  std::mutex mutex_;  // Guards the next two.
  std::map<int, Compiled> compiled_;
  std::map<int, std::shared_ptr<CompressedLane>> lanes_;
};

}  // namespace gradring::collectives
