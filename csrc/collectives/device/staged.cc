#include "collectives/device/staged.h"

#include <algorithm>

#include "collectives/device/patience.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

// A hierarchy's order of additions depends on its segments: a slot holds one.
Staged::Options options_for(const Communicator& communicator, Staged::Options options) {
  constexpr std::uint32_t kSlots = 3;  // One going down, one in the network, one going up.
  if (!communicator.has_hierarchy() || options.slot_bytes >= Hierarchy::kSegmentBytes)
    return options;
  options.slot_bytes = Hierarchy::kSegmentBytes;
  options.slots = std::min(options.slots, kSlots);
  return options;
}

// One job's rounds, on the thread that drives the communicator.
class Passage {
 public:
  Passage(std::shared_ptr<StagedLane> lane, std::shared_ptr<StagedJob> job)
      : lane_(std::move(lane)), job_(std::move(job)) {}
  // Sent, failed, or cancelled before it began: no stream waits for it any more.
  ~Passage() { lane_->fail(*job_); }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  void run(const Communicator& communicator, const Operation& whole,
           const Communicator::Execute& execute, Millis timeout) {
    for (std::uint32_t round = 0; round < job_->rounds.size(); ++round) {
      await_down(communicator, call_of(whole), round, timeout);
      execute(part_of(whole, job_->rounds[round], lane_->slot(*job_, round)));
      lane_->sent(*job_, round);
    }
  }

 private:
  void await_down(const Communicator& communicator, const Call& call, std::uint32_t round,
                  Millis timeout) {
    Patience patience(timeout);
    while (!lane_->is_down(*job_, round)) {
      communicator.check_queued(call);
      if (!patience.nap())
        throw TimedOut(str("GPU ", lane_->device().index(), " did not bring its data within ",
                           seconds_between(Time{}, Time{timeout}), " s (part ", round + 1, " of ",
                           job_->rounds.size(), "): what its stream does before takes too long"));
    }
  }

  std::shared_ptr<StagedLane> lane_;
  std::shared_ptr<StagedJob> job_;
};

}  // namespace

bool StagedWork::is_done() const {
  if (!work_->is_done()) return false;
  return work_->failure() || job_->is_over();
}

bool StagedWork::is_over() const {
  return work_->is_done() && job_->is_over();
}

void StagedWork::wait(gpu::StreamView stream, Millis timeout) {
  stream.refuse_capture();
  if (!lane_->waits_on_memory()) communicator_->wait(*work_, timeout);
  if (work_->is_done()) work_->raise_if_failed();
  stream.wait(job_->end);
}

std::unique_ptr<gpu::Event> StagedWork::mark(gradring_stream stream) const {
  auto event = std::make_unique<gpu::Event>(lane_->device());
  event->record(view(stream));
  return event;
}

void StagedWork::wait(Millis timeout) {
  const Time deadline = Clock::now() + timeout;
  communicator_->wait(*work_, timeout);
  Patience patience(
      std::max(Millis{0}, std::chrono::duration_cast<Millis>(deadline - Clock::now())));
  while (!job_->is_over()) {
    transport::run_interrupt_check();
    if (!patience.nap())
      throw TimedOut(str("wait: the result is not on the GPU after ",
                         seconds_between(Time{}, Time{timeout}), " s; it goes on, wait() again"));
  }
  job_->failure.with([](const Failure& failure) {
    if (failure) failure.raise();
  });
  job_->end.is_passed();  // Throws where the device is at fault.
}

Staged::Staged(std::shared_ptr<Communicator> communicator, const gradring_gpu_api& api)
    : Staged(std::move(communicator), api, Options{}) {}

Staged::Staged(std::shared_ptr<Communicator> communicator, const gradring_gpu_api& api,
               const Options& options)
    : communicator_(std::move(communicator)),
      api_(api),
      options_(options_for(*communicator_, options)) {}

std::shared_ptr<StagedLane> Staged::lane(int device) {
  const std::lock_guard lock(lanes_mutex_);
  auto& lane = lanes_[device];
  if (!lane) lane = std::make_shared<StagedLane>(api_, device, options_);
  return lane;
}

// Of whole.request.dtype. Settles its algorithm.
std::vector<StagedRound> Staged::rounds_of(Operation& whole) const {
  const auto cut = communicator_->cutting_of(whole);
  whole.algorithm = cut.algorithm;
  const std::uint64_t slot_count = options_.slot_bytes / item_bytes(whole.request.dtype);
  auto rounds = staged_rounds(cut.request, slot_count, std::min(cut.segment_count, slot_count));
  const bool has_it = whole.request.op == OpKind::kBroadcast &&
                      whole.request.root == communicator_->rank() && whole.input == whole.output;
  for (StagedRound& round : rounds)
    if (has_it) round.up.clear();
  return rounds;
}

StagedWork Staged::submit(const Operation& operation, const Place& place, Millis timeout) {
  const auto lane = this->lane(place.device);
  const DType dtype = operation.request.dtype;
  Operation whole = operation;
  whole.request.dtype = place.wire_dtype.value_or(dtype);
  if (whole.request.dtype != dtype && !lane->has_kernels())
    throw DeviceError("this build's GPU plugin has no kernels to cast with");
  auto rounds = rounds_of(whole);
  auto job = lane->make_job(std::move(rounds), {dtype, operation.input, operation.output},
                            {lane->device(), place.stream});
  const auto passage = std::make_shared<Passage>(lane, job);
  const std::lock_guard in_turn(submit_mutex_);
  auto work = communicator_->submit(
      call_of(whole),
      [communicator = communicator_.get(), passage, whole,
       timeout](const Communicator::Execute& execute) {
        passage->run(*communicator, whole, execute, timeout);
      },
      timeout);
  lane->begin(job);
  return {communicator_, std::move(work), lane, std::move(job)};
}

Staged::Stages Staged::measure(const Operation& operation, int device, Millis timeout) {
  const auto lane = this->lane(device);
  const gpu::Stream stream(lane->device(), false);
  Operation whole = operation;
  auto rounds = rounds_of(whole);
  Stages stages;
  stages.rounds = static_cast<std::uint32_t>(rounds.size());
  Operation barrier;
  barrier.request.op = OpKind::kBarrier;
  const auto timed = [&](const auto& stage) {
    communicator_->run(barrier, timeout);
    const Time begin = Clock::now();
    stage();
    return seconds_between(begin, Clock::now());
  };
  const StagedLane::Ends ends{operation.request.dtype, operation.input, operation.output};
  const auto job = lane->make_job(rounds, ends, stream);
  stages.down_s = timed([&] { lane->copy_all_down(*job); });
  stages.network_s = timed([&] {
    for (std::uint32_t round = 0; round < stages.rounds; ++round)
      communicator_->run(part_of(whole, rounds[round], lane->slot(*job, round)), timeout);
  });
  stages.up_s = timed([&] { lane->copy_all_up(*job); });
  lane->fail(*job);
  stages.whole_s = timed([&] {
    submit(operation, {.device = device, .stream = stream.handle()}, timeout).wait(timeout);
  });
  return stages;
}

std::string Staged::describe(int device) {
  const auto used = lane(device);
  const auto& options = used->options();
  return str("staged through ", options.slots, " slots of ", options.slot_bytes >> 10,
             " KiB of pinned host memory; ",
             used->waits_on_memory() ? "its streams wait on memory"
                                     : "its streams are fed by the host, part by part");
}

}  // namespace gradring::collectives
