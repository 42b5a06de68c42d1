#include "collectives/device/staged_lane.h"

#include <algorithm>
#include <cstring>

#include "gpu/chunks.h"

namespace gradring::collectives {
namespace {

constexpr std::size_t kWordLineBytes = 64;  // Words of different slots do not share one.
constexpr std::size_t kTableBytes = std::size_t{64} << 10;
// Elements: below it, a copy of its own costs more than its bytes.
constexpr std::uint64_t kSmallPiece = 16 * 1024;
constexpr std::size_t kTablesBytes = std::size_t{256} << 20;  // For 80 GB on its way.

struct ByteSpan {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// In the slot.
ByteSpan span_of(const StagedJob& job, const std::vector<Piece>& pieces) {
  const std::uint64_t end = pieces.back().slot_at + pieces.back().count;
  return {job.slot_bytes_of(pieces.front().slot_at),
          job.slot_bytes_of(end - pieces.front().slot_at)};
}

std::uint32_t load(const std::uint32_t* word) {
  return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(word))
      .load(std::memory_order_acquire);
}

void store(std::uint32_t* word, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
}

}  // namespace

StagedJob::StagedJob(const gpu::Device& device, std::vector<StagedRound> cut, DType on_device)
    : rounds(std::move(cut)),
      dtype(on_device),
      slot_dtype(rounds.front().request.dtype),
      ready(device),
      downs(device),
      end(device) {}

bool StagedJob::is_over() const {
  try {
    return has_end.load(std::memory_order_acquire) && end.is_passed();
  } catch (const DeviceError&) {
    return true;  // A device at fault does nothing any more.
  }
}

StagedLane::StagedLane(const gradring_gpu_api& api, int device, const Options& options)
    : device_(api, device),
      options_(options),
      has_kernels_(device_.has_streaming()),
      down_(device_, true),
      up_(device_, true),
      slot_memory_(device_, options.slot_bytes * options.slots),
      words_(device_, 2 * kWordLineBytes * options.slots),
      tables_(device_, kTableBytes, kTablesBytes),
      flow_(options.slots, can_wait()) {
  if (has_kernels())
    scratch_ = std::make_unique<gpu::DeviceMemory>(device_, options.slot_bytes * options.slots);
  for (std::size_t i = 0; i < options.slots; ++i) {
    Slot& slot = *slots_.emplace_back(std::make_unique<Slot>(device_));
    slot.host = slot_memory_.data() + i * options.slot_bytes;
    if (scratch_) slot.scratch = scratch_->data() + i * options.slot_bytes;
    slot.ready = reinterpret_cast<std::uint32_t*>(words_.data() + 2 * i * kWordLineBytes);
    slot.sent = reinterpret_cast<std::uint32_t*>(words_.data() + (2 * i + 1) * kWordLineBytes);
  }
}

// Drivers have been seen to have these calls and to refuse them, so one of each is made: it changes
// nothing, and waits for nothing.
bool StagedLane::can_wait() {
  std::memset(words_.data(), 0, words_.bytes());
  if (!options_.may_wait || !has_kernels() || !device_.can_wait_on_memory()) return false;
  const auto& runtime = device_.runtime();
  auto* const word = reinterpret_cast<std::uint32_t*>(words_.data());
  return runtime.stream_write_value(device_.index(), down_.handle(), word, 0) == GRADRING_GPU_OK &&
         runtime.stream_wait_value(device_.index(), down_.handle(), word, 0) == GRADRING_GPU_OK;
}

StagedLane::~StagedLane() {
  const auto& runtime = device_.runtime();
  runtime.stream_synchronize(device_.index(), down_.handle());
  runtime.stream_synchronize(device_.index(), up_.handle());
}

std::shared_ptr<StagedJob> StagedLane::make_job(std::vector<StagedRound> rounds, const Ends& ends,
                                                gpu::StreamView user) {
  user.refuse_capture();
  auto job = std::make_shared<StagedJob>(device_, std::move(rounds), ends.dtype);
  GRADRING_ASSERT(job->dtype == job->slot_dtype || has_kernels());
  job->input = static_cast<const std::byte*>(ends.input);
  job->output = static_cast<std::byte*>(ends.output);
  std::uint64_t largest = 0;
  for (const StagedRound& round : job->rounds)
    largest = std::max(largest, job->slot_bytes_of(round.slot_count));
  if (largest > options_.slot_bytes) {
    job->own_slot = std::make_unique<gpu::PinnedMemory>(device_, largest);
    if (scratch_) job->own_scratch = std::make_unique<gpu::DeviceMemory>(device_, largest);
  }
  job->ready.record(user);
  let_go_of_finished();
  job->blocks.push_back(tables_.take());
  const std::lock_guard lock(flow_mutex_);
  job->id = ++jobs_made_;
  job->stop = reinterpret_cast<std::uint32_t*>(table(*job, kWordLineBytes));
  store(job->stop, 0);
  jobs_.push_back(job);
  return job;
}

// Whose streams are done with their memory, whoever else holds them. Asked, and let go of, without
// flow_mutex_.
void StagedLane::let_go_of_finished() {
  std::vector<std::shared_ptr<StagedJob>> finished;
  {
    const std::lock_guard lock(flow_mutex_);
    finished.assign(jobs_.begin(), jobs_.end());
  }
  std::erase_if(finished, [](const std::shared_ptr<StagedJob>& job) { return !job->is_over(); });
  {
    const std::lock_guard lock(flow_mutex_);
    // Another thread may have come before.
    std::erase_if(finished, [&](const std::shared_ptr<StagedJob>& job) {
      return std::erase(jobs_, job) == 0;
    });
  }
  for (const std::shared_ptr<StagedJob>& job : finished) {
    for (std::byte* block : job->blocks) tables_.give_back(block);
    job->blocks.clear();
  }
}

std::byte* StagedLane::table(StagedJob& job, std::size_t bytes) {
  GRADRING_ASSERT(bytes <= kTableBytes);
  const std::size_t rounded = (bytes + kWordLineBytes - 1) / kWordLineBytes * kWordLineBytes;
  if (job.blocks.empty() || job.block_used + rounded > kTableBytes) {
    job.blocks.push_back(tables_.take());
    job.block_used = 0;
  }
  return job.blocks.back() + std::exchange(job.block_used, job.block_used + rounded);
}

void StagedLane::begin(const std::shared_ptr<StagedJob>& job) {
  const std::lock_guard issuing(issue_mutex_);
  std::vector<Step> steps;
  {
    const std::lock_guard lock(flow_mutex_);
    if (job->is_given_up) return;
    job->first = flow_.begin(job->id, static_cast<std::uint32_t>(job->rounds.size()), steps);
    job->has_begun.store(true, std::memory_order_release);
  }
  carry_out(steps);
}

bool StagedLane::is_down(const StagedJob& job, std::uint32_t round) const {
  if (!job.has_begun.load(std::memory_order_acquire)) return false;
  job.failure.with([](const Failure& failure) {
    if (failure) failure.raise();
  });
  const Ticket ticket = job.first + round;
  const Slot& slot = slot_of(ticket);
  if (flow_.waits_on_memory()) return has_come(load(slot.ready), ticket);
  return slot.down_ticket.load(std::memory_order_acquire) == ticket && slot.down.is_passed();
}

std::byte* StagedLane::slot(const StagedJob& job, std::uint32_t round) const {
  return job.own_slot ? job.own_slot->data() : slot_of(job.first + round).host;
}

void StagedLane::sent(StagedJob& job, std::uint32_t round) {
  std::vector<Step> steps;
  if (flow_.waits_on_memory()) {  // Words only: nobody who puts steps into streams is waited for.
    {
      const std::lock_guard lock(flow_mutex_);
      flow_.sent(job.id, round, steps);
    }
    return carry_out(steps);
  }
  const std::lock_guard issuing(issue_mutex_);
  {
    const std::lock_guard lock(flow_mutex_);
    flow_.sent(job.id, round, steps);
  }
  carry_out(steps);
  job.failure.with([](const Failure& failure) {
    if (failure) failure.raise();
  });
}

void StagedLane::fail(StagedJob& job) {
  std::vector<Step> steps;
  const auto give_up = [&] {
    const std::lock_guard lock(flow_mutex_);
    if (job.has_begun) return flow_.fail(job.id, steps);
    job.is_given_up = true;
    job.has_end = true;  // Nothing of it is in a stream.
  };
  std::unique_lock issuing(issue_mutex_, std::defer_lock);
  if (!flow_.waits_on_memory()) issuing.lock();
  give_up();
  carry_out(steps);
}

// A step that a device refuses is its job's failure, and so are the job's steps after it: others'
// are tried.
void StagedLane::carry_out(const std::vector<Step>& steps) {
  std::shared_ptr<StagedJob> job;
  for (const Step& step : steps) {
    if (!job || job->id != step.work) {
      const std::lock_guard lock(flow_mutex_);
      const auto found = std::find_if(
          jobs_.begin(), jobs_.end(),
          [&](const std::shared_ptr<StagedJob>& known) { return known->id == step.work; });
      if (found == jobs_.end()) continue;  // Over already: its device is at fault.
      job = *found;
    }
    const bool is_word = step.kind == StepKind::kStop || step.kind == StepKind::kSetSent;
    const auto has_failed = [](const Failure& failure) { return static_cast<bool>(failure); };
    if (!is_word && step.kind != StepKind::kEnd && job->failure.with(has_failed)) continue;
    try {
      carry_out(*job, step);
    } catch (const std::exception& error) {
      job->failure.with([&](Failure& failure) {
        if (!failure) failure = Failure::from(error);
      });
    }
  }
}

void StagedLane::carry_out(StagedJob& job, const Step& step) {
  Slot& slot = slot_of(step.ticket);
  switch (step.kind) {
    case StepKind::kAwaitSlot:
      if (step.round == 0) down_.wait(job.ready);
      down_.wait(slot.freed);
      break;
    case StepKind::kDown: copy_down(job, step); break;
    case StepKind::kSignalDown:
      if (flow_.waits_on_memory()) {
        down_.write(slot.ready, step.ticket);
        if (step.round + 1 == job.rounds.size()) job.downs.record(down_);
        break;
      }
      job.downs.record(down_);
      slot.down.record(down_);
      slot.down_ticket.store(step.ticket, std::memory_order_release);
      break;
    case StepKind::kAwaitSent: up_.wait_for(slot.sent, step.ticket); break;
    case StepKind::kUp: copy_up(job, step); break;
    case StepKind::kFreeSlot: slot.freed.record(up_); break;
    case StepKind::kAwaitDowns: up_.wait(job.downs); break;
    case StepKind::kEnd:
      if (job.failure.with([](const Failure& failure) { return static_cast<bool>(failure); })) {
        // What has been left out may have been the end of the way down.
        job.downs.record(down_);
        up_.wait(job.downs);
      }
      job.end.record(up_);
      job.has_end.store(true, std::memory_order_release);
      break;
    case StepKind::kStop: store(job.stop, 1); break;
    case StepKind::kSetSent: store(slot.sent, step.ticket); break;
  }
}

std::byte* StagedLane::scratch(const StagedJob& job, Ticket ticket) const {
  return job.own_scratch ? job.own_scratch->data() : slot_of(ticket).scratch;
}

void StagedLane::copy_down(StagedJob& job, const Step& step) {
  const StagedRound& round = job.rounds[step.round];
  if (round.down.empty()) return;
  std::byte* const to = slot(job, step.round);
  const bool is_scattered = round.down.size() > 1 && round.down.front().count < kSmallPiece;
  if (job.dtype == job.slot_dtype && !(is_scattered && has_kernels())) {
    for (const Piece& piece : round.down)
      down_.copy(to + job.slot_bytes_of(piece.slot_at),
                 job.input + job.device_bytes_of(piece.device_at),
                 job.device_bytes_of(piece.count));
    return;
  }
  std::byte* const packed = scratch(job, step.ticket);
  for (const gradring_chunks& chunks : tables(job, round.down, job.input)) {
    gradring_pack call{};
    call.chunks = chunks;
    call.from = static_cast<std::int32_t>(job.dtype);
    call.to = static_cast<std::int32_t>(job.slot_dtype);
    call.bucket = packed;
    device_.check(device_.api().streaming->pack(device_.index(), &call, down_.handle()),
                  "pack what is to be reduced");
  }
  const auto [begin, bytes] = span_of(job, round.down);
  down_.copy(to + begin, packed + begin, bytes);
}

// Through memory of the device where a kernel has to look whether it may: a copy cannot be stopped.
void StagedLane::copy_up(StagedJob& job, const Step& step) {
  const StagedRound& round = job.rounds[step.round];
  if (round.up.empty()) return;
  const std::byte* const from = slot(job, step.round);
  if (!flow_.waits_on_memory() && job.dtype == job.slot_dtype) {
    for (const Piece& piece : round.up)
      up_.copy(job.output + job.device_bytes_of(piece.device_at),
               from + job.slot_bytes_of(piece.slot_at), job.device_bytes_of(piece.count));
    return;
  }
  std::byte* const packed = scratch(job, step.ticket);
  const auto [begin, bytes] = span_of(job, round.up);
  up_.copy(packed + begin, from + begin, bytes);
  for (const gradring_chunks& chunks : tables(job, round.up, job.output)) {
    gradring_unpack call{};
    call.chunks = chunks;
    call.from = static_cast<std::int32_t>(job.slot_dtype);
    call.to = static_cast<std::int32_t>(job.dtype);
    call.bucket = packed;
    call.skip = job.stop;
    device_.check(device_.api().streaming->unpack(device_.index(), &call, up_.handle()),
                  "put back what was reduced");
  }
}

void StagedLane::copy_all_down(StagedJob& job) {
  const std::lock_guard issuing(issue_mutex_);
  for (std::uint32_t round = 0; round < job.rounds.size(); ++round)
    copy_down(job, {StepKind::kDown, job.id, round, round});
  down_.synchronize();
}

void StagedLane::copy_all_up(StagedJob& job) {
  const std::lock_guard issuing(issue_mutex_);
  for (std::uint32_t round = 0; round < job.rounds.size(); ++round)
    copy_up(job, {StepKind::kUp, job.id, round, round});
  up_.synchronize();
}

// Tables of chunks lie in the job's blocks, which devices can read, until the job is over.
std::vector<gradring_chunks> StagedLane::tables(StagedJob& job, const std::vector<Piece>& pieces,
                                                const std::byte* device_memory) {
  std::vector<gpu::Placed> placed;
  for (const Piece& piece : pieces)
    placed.push_back({const_cast<std::byte*>(device_memory) + job.device_bytes_of(piece.device_at),
                      piece.slot_at, piece.count});
  const auto chunks = gpu::cut_pieces(placed, item_bytes(job.dtype));
  constexpr std::size_t kMost = kTableBytes / sizeof(gradring_chunk);
  std::vector<gradring_chunks> all;
  for (std::size_t begin = 0; begin < chunks.size(); begin += kMost) {
    const std::size_t count = std::min(kMost, chunks.size() - begin);
    std::byte* const memory = table(job, count * sizeof(gradring_chunk));
    std::memcpy(memory, &chunks[begin], count * sizeof(gradring_chunk));
    all.push_back(
        {reinterpret_cast<const gradring_chunk*>(memory), static_cast<std::uint32_t>(count)});
  }
  return all;
}

}  // namespace gradring::collectives
