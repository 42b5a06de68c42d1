#include "collectives/device/gpu_compressed.h"

#include <algorithm>

#include "base/error.h"
#include "collectives/device/compressed_lane.h"
#include "collectives/device/patience.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

// A job's turn, on the thread that drives the communicator.
class JobsTurn {
 public:
  JobsTurn(std::shared_ptr<CompressedLane> lane, std::shared_ptr<CompressedJob> job)
      : lane_(std::move(lane)), job_(std::move(job)) {}
  // Done, failed, or cancelled before it began.
  ~JobsTurn() { job_->leave(); }
  JobsTurn(const JobsTurn&) = delete;
  JobsTurn& operator=(const JobsTurn&) = delete;

  void take(const Communicator& ranks, const Call& call, const Communicator::Execute& execute,
            Millis timeout) {
    const auto await = [&](const std::function<bool()>& is_so) {
      Patience patience(timeout);
      while (!is_so()) {
        ranks.check_queued(call);
        if (!patience.nap())
          throw TimedOut(str("GPU ", lane_->device().index(), " did not bring what it encodes ",
                             "within ", seconds_between(Time{}, Time{timeout}),
                             " s: what its stream does before takes too long"));
      }
    };
    job_->run(execute, await);
  }

 private:
  std::shared_ptr<CompressedLane> lane_;
  std::shared_ptr<CompressedJob> job_;
};

}  // namespace

void GpuCompressedWork::order(gradring_stream stream, Millis timeout) {
  job_->end().order({lane_->device(), stream}, *work_, timeout);
}

void GpuCompressedWork::wait(Millis timeout) {
  const Time deadline = Clock::now() + std::min(timeout, Millis{std::chrono::hours(24)});
  ranks_->wait(*work_, timeout);
  Patience patience(
      std::max(Millis{0}, std::chrono::duration_cast<Millis>(deadline - Clock::now())));
  while (!job_->end().is_passed()) {
    transport::run_interrupt_check();
    if (!patience.nap())
      throw TimedOut(str("wait: the result is not on the GPU after ",
                         seconds_between(Time{}, Time{timeout}), " s; it goes on, wait() again"));
  }
}

bool GpuCompressedWork::is_done() const {
  if (!work_->is_done()) return false;
  if (work_->failure()) return true;
  try {
    return job_->end().is_passed();
  } catch (const std::exception&) {
    return true;
  }
}

bool GpuCompressedWork::is_over() const {
  return work_->is_done() && job_->is_over();
}

bool GpuCompressed::knows(const Compressed& what, int device) {
  if (!GpuCodec::knows(api_, what.codec, what.count)) return false;
  const Compiled compiled = compiled_for(device);
  return compiled.codecs && (compiled.streaming || !GpuCodec::is_16_bit(what.codec));
}

// Asked once: it does not change.
GpuCompressed::Compiled GpuCompressed::compiled_for(int device) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = compiled_.try_emplace(device);
  if (is_new) {
    const gpu::Device asked(api_, device);
    known->second = {asked.has_streaming(), asked.has_codecs()};
  }
  return known->second;
}

std::shared_ptr<CompressedLane> GpuCompressed::lane(int device) {
  const std::lock_guard lock(mutex_);
  auto& lane = lanes_[device];
  if (!lane) lane = std::make_shared<CompressedLane>(api_, device);
  return lane;
}

GpuCompressedWork GpuCompressed::submit(const Compressed& what, const Place& place,
                                        Millis timeout) {
  GRADRING_ASSERT(knows(what, place.device));
  Call call;
  call.op = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.count = what.count;
  call.algorithm = step_of(StepOf::kAllReduceCompressed);
  ranks_->check_usable(call);
  const auto used = lane(place.device);
  for (const gradring_stream stream : place.streams)
    gpu::StreamView(used->device(), stream).refuse_capture();
  const CompressedLayout layout(what, ranks_->rank(), ranks_->world_size());
  auto job = used->make_job(what, layout);
  const auto turn = std::make_shared<JobsTurn>(used, job);
  job->begin(place.streams);
  const auto carry_out = [ranks = ranks_.get(), turn, call,
                          timeout](const Communicator::Execute& execute) {
    turn->take(*ranks, call, execute, timeout);
  };
  auto work = ranks_->submit(call, carry_out, timeout);
  return {ranks_, used, std::move(job), std::move(work)};
}

}  // namespace gradring::collectives
