// GpuLaunch: the end of an operation on a GPU, as its user sees it: an event that one thread will
// put into a stream, later, and that others order their own streams after.
#pragma once

#include <condition_variable>
#include <mutex>

#include "collectives/communicator/work.h"
#include "gpu/stream.h"

namespace gradring::collectives {

class GpuLaunch {
 public:
  explicit GpuLaunch(const gpu::Device& device) : end_(device) {}

  // By the thread that carries the operation out. Everything of it is in `stream` now.
  void note_launched(gpu::StreamView stream);
  // It is done, or nothing of it will be launched any more.
  void note_over();
  // Launched, and done.
  bool is_passed() const;

  // From any thread. What is put into `stream` from now on comes after the operation, which is
  // `work`. Blocks until it is launched. Throws what has failed it by then; TimedOut: it goes on.
  void order(gpu::StreamView stream, const Work& work, Millis timeout);

 private:
  bool wait_until_launched(Millis time);

  gpu::Event end_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_launched_ = false;
  bool is_over_ = false;
};

}  // namespace gradring::collectives
