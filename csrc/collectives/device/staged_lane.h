// StagedLane: one communicator's way from one GPU to host memory and back: two urgent streams, a
// ring of pinned slots, and the words and events by which streams and host wait for each other.
// Carries out what StagedFlow says. begin() is called by users' threads, the rest by the thread
// that drives the communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/guarded.h"
#include "collectives/device/staged_flow.h"
#include "collectives/device/staged_rounds.h"
#include "gpu/memory.h"
#include "gpu/stream.h"

namespace gradring::collectives {

// One work on its way through a lane. Made by StagedLane::make_job.
struct StagedJob {
  StagedJob(const gpu::Device& device, std::vector<StagedRound> cut, DType on_device);

  const std::vector<StagedRound> rounds;
  const DType dtype;                 // On the device; in slots: of the rounds' requests.
  const DType slot_dtype;            // Another one: cast on the way down and on the way up.
  const std::byte* input = nullptr;  // On the device.
  std::byte* output = nullptr;
  std::uint64_t id = 0;
  Ticket first = 0;

  std::uint64_t slot_bytes_of(std::uint64_t count) const { return count * item_bytes(slot_dtype); }
  std::uint64_t device_bytes_of(std::uint64_t count) const { return count * item_bytes(dtype); }

  gpu::Event ready;  // On the user's stream: the input is there, the output may be written.
  gpu::Event downs;  // Nothing reads the input any more.
  gpu::Event end;    // Nor writes the output.
  std::uint32_t* stop = nullptr;  // Pinned. Not 0: nothing goes up any more.
  // Instead of a slot, for a round that is larger than one.
  std::unique_ptr<gpu::PinnedMemory> own_slot;
  std::unique_ptr<gpu::DeviceMemory> own_scratch;

  std::atomic<bool> has_begun{false};
  std::atomic<bool> has_end{false};
  bool is_given_up = false;  // Guarded by the lane's flow_mutex_: begin() finds nothing to do.
  Guarded<Failure> failure;  // Of putting it into the streams.

  std::vector<std::byte*> blocks;  // Of the lane's pool of tables.
  std::size_t block_used = 0;      // Bytes of the last one.

  // Neither stream touches its memory any more.
  bool is_over() const;
};

class StagedLane {
 public:
  struct Options {
    std::size_t slot_bytes = std::size_t{4} << 20;
    std::uint32_t slots = 6;
    // What fills the slots may wait for words in memory, where the device can: all steps of a job
    // are put into the streams by begin(), which blocks where they are full. Not for who writes
    // those words: it would block for ever. Users have to ask for it
    // (docs/decisions/0026-the-host-feeds-streams.md).
    bool may_wait = false;
  };

  StagedLane(const gradring_gpu_api& api, int device, const Options& options);
  ~StagedLane();  // Waits for the streams; all jobs have been sent or failed.

  const gpu::Device& device() const { return device_; }
  const Options& options() const { return options_; }
  bool has_kernels() const { return has_kernels_; }
  bool waits_on_memory() const { return flow_.waits_on_memory(); }

  // `ready` is recorded on `user`: what is in there now comes first.
  struct Ends {
    DType dtype = DType::kFloat32;
    const void* input = nullptr;
    void* output = nullptr;
  };
  std::shared_ptr<StagedJob> make_job(std::vector<StagedRound> rounds, const Ends& ends,
                                      gpu::StreamView user);
  // Jobs in the order in which the communicator takes them up. What goes wrong is the job's
  // failure.
  void begin(const std::shared_ptr<StagedJob>& job);

  // The round's slot is filled. Throws the job's failure.
  bool is_down(const StagedJob& job, std::uint32_t round) const;
  std::byte* slot(const StagedJob& job, std::uint32_t round) const;
  void sent(StagedJob& job, std::uint32_t round);
  // The job will not be sent, or not all of it: nothing waits for that any more. May be called for
  // a job that has been sent, or was never begun. Never throws.
  void fail(StagedJob& job);

  // For measuring: one way of a job that is not begun, and wait for it. Nothing else is in flight.
  void copy_all_down(StagedJob& job);
  void copy_all_up(StagedJob& job);

 private:
  struct Slot {
    explicit Slot(const gpu::Device& device) : down(device), freed(device) {}
    std::byte* host = nullptr;
    std::byte* scratch = nullptr;    // On the device, as large; null without kernels.
    std::uint32_t* ready = nullptr;  // Words in pinned memory.
    std::uint32_t* sent = nullptr;
    gpu::Event down;                     // Without waits on memory.
    std::atomic<Ticket> down_ticket{0};  // Whose event that is.
    gpu::Event freed;
  };

  bool can_wait();
  Slot& slot_of(Ticket ticket) const { return *slots_[flow_.slot_of(ticket)]; }
  void carry_out(const std::vector<Step>& steps);
  void carry_out(StagedJob& job, const Step& step);
  void copy_down(StagedJob& job, const Step& step);
  void copy_up(StagedJob& job, const Step& step);
  std::byte* scratch(const StagedJob& job, Ticket ticket) const;
  std::vector<gradring_chunks> tables(StagedJob& job, const std::vector<Piece>& pieces,
                                      const std::byte* device_memory);
  std::byte* table(StagedJob& job, std::size_t bytes);
  void let_go_of_finished();

  const gpu::Device device_;
  const Options options_;
  const bool has_kernels_;  // And this build has them for this device.
  gpu::Stream down_;
  gpu::Stream up_;
  gpu::PinnedMemory slot_memory_;
  gpu::PinnedMemory words_;
  std::unique_ptr<gpu::DeviceMemory> scratch_;
  gpu::PinnedPool tables_;
  std::vector<std::unique_ptr<Slot>> slots_;

  // Held while steps are put into streams, which may block where they are full.
  std::mutex issue_mutex_;
  // Guards the rest; taken after issue_mutex_. Nobody who holds it calls the driver, which may wait
  // for a stream that waits for a word, which is written under it.
  std::mutex flow_mutex_;
  StagedFlow flow_;
  std::uint64_t jobs_made_ = 0;
  std::deque<std::shared_ptr<StagedJob>> jobs_;
};

}  // namespace gradring::collectives
