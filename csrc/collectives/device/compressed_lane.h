// CompressedLane: what compressed sums on one GPU share: a stream in which vectors are encoded, one
// in which results are put together, and memory that goes from job to job, because to allocate it
// waits for the device. CompressedJob: one sum on its way. Used by gpu_compressed.cc alone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "collectives/device/gpu_codec.h"
#include "collectives/device/gpu_launch.h"
#include "collectives/engine/compressed.h"
#include "collectives/engine/compressed_layout.h"
#include "gpu/memory.h"
#include "gpu/stream.h"

namespace gradring::collectives {

class CompressedLane;

struct CompressedMemory {
  CompressedMemory(const gpu::Device& at, std::size_t device_bytes, std::size_t pinned_bytes)
      : device(at, device_bytes), pinned(at, pinned_bytes) {}
  gpu::DeviceMemory device;
  gpu::PinnedMemory pinned;
};

// Where what lies in a job's memory, in bytes from its begin. Parts lie where every kernel is
// fastest.
struct CompressedPlaces {
  CompressedPlaces(const CompressedLayout& layout, const GpuCodec& codec, bool has_residual);

  // On the device.
  std::size_t residual = 0;           // All of the next one.
  std::size_t sum = 0;                // Floats of this rank's part.
  std::size_t own = 0;                // This rank's part, encoded.
  std::vector<std::size_t> parts;     // The others', by part.
  std::vector<std::size_t> received;  // This rank's part of the others, by rank.
  std::size_t scratch = 0;
  std::size_t device_bytes = 0;
  // Pinned.
  std::size_t out = 0;
  std::size_t in = 0;
  std::size_t pieces = 0;
  std::size_t pinned_bytes = 0;
};

class CompressedJob {
 public:
  using Execute = std::function<void(const Operation&)>;
  using Await = std::function<void(const std::function<bool()>& is_so)>;

  CompressedJob(CompressedLane& lane, const Compressed& what, const CompressedLayout& layout);

  // By the user's thread: has what the others get encoded as soon as `streams` come here. What goes
  // wrong is thrown by run().
  void begin(const std::vector<gradring_stream>& streams) noexcept;
  // By the thread that drives the communicator, when the job's turn has come.
  void run(const Execute& execute, const Await& await);
  // After run(), or instead of it: nothing of it goes on.
  void leave() noexcept;

  GpuLaunch& end() { return end_; }
  bool is_over() const;
  std::unique_ptr<CompressedMemory> take_memory() { return std::move(memory_); }

 private:
  using Vector = GpuCodec::Vector;
  std::byte* device(std::size_t place) const { return memory_->device.data() + place; }
  std::byte* pinned(std::size_t place) const { return memory_->pinned.data() + place; }
  std::size_t encoded_bytes(Rank part) const {
    return layout_.bytes(part) - CompressedLayout::kHeaderBytes;
  }
  float* residual(Rank part) const;
  Vector vector_of(float* at, std::uint64_t count);
  void prepare();
  void encode_for_others();
  void add_up();
  void put_together();

  CompressedLane& lane_;
  const Compressed what_;
  const CompressedLayout layout_;
  GpuCodec codec_;
  const CompressedPlaces places_;
  std::unique_ptr<CompressedMemory> memory_;
  std::vector<Vector> parts_;  // Of the values.
  Vector sum_;
  std::size_t pieces_used_ = 0;
  Failure failure_;  // Of begin(); before the job is handed to another thread.

  gpu::Event encoded_;
  gpu::Event added_;
  GpuLaunch end_;
  gpu::Event quiet_;  // Nothing comes after it. Never recorded: nothing came.
  std::atomic<bool> has_left_{false};
};

class CompressedLane {
 public:
  CompressedLane(const gradring_gpu_api& api, int device)
      : device_(api, device), down_(device_, true), up_(device_, true) {}
  ~CompressedLane();  // Waits for the streams; all jobs have left.

  const gpu::Device& device() const { return device_; }
  gpu::StreamView down() const { return down_; }
  gpu::StreamView up() const { return up_; }

  std::shared_ptr<CompressedJob> make_job(const Compressed& what, const CompressedLayout& layout);
  std::unique_ptr<CompressedMemory> take(std::size_t device_bytes, std::size_t pinned_bytes);

 private:
  const gpu::Device device_;
  gpu::Stream down_;
  gpu::Stream up_;
  std::mutex mutex_;  // Guards the rest.
  std::vector<std::shared_ptr<CompressedJob>> jobs_;
  std::vector<std::unique_ptr<CompressedMemory>> free_;
};

}  // namespace gradring::collectives
