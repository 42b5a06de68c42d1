#include "collectives/nccl_lane.h"

#include "base/error.h"

namespace gradring::collectives {
namespace {

using gpu::check;

// How long the monitor may take to say which rank is behind an error of NCCL's.
constexpr Millis kVerdictTime{1500};

const gradring_gpu_runtime& runtime() {
  return *gpu::devices().runtime;
}

}  // namespace

DeviceEvent::DeviceEvent(int device) : device_(device) {
  check(runtime().event_create(device, 0, &event_), "making an event");
}

DeviceEvent::~DeviceEvent() {
  runtime().event_destroy(device_, event_);
}

void DeviceEvent::record(gradring_stream stream) {
  check(runtime().event_record(device_, event_, stream), "recording an event");
}

void DeviceEvent::hold(gradring_stream stream) const {
  check(runtime().stream_wait_event(device_, stream, event_), "letting a stream wait");
}

bool DeviceEvent::is_reached() const {
  const int code = runtime().event_query(event_);
  if (code == GRADRING_GPU_NOT_READY) return false;
  check(code, "the stream that NCCL works in");
  return true;
}

NcclLane::NcclLane(std::unique_ptr<gpu::NcclCommunicator> nccl, int device)
    : device_(device), nccl_(std::move(nccl)) {
  check(runtime().stream_create(device, 1, &stream_), "making a stream");
}

NcclLane::~NcclLane() {
  nccl_.reset();  // Its kernels are in the stream.
  runtime().stream_destroy(device_, stream_);
}

void NcclLane::hand_in(std::shared_ptr<NcclLaunch> launch) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(launch));
}

bool NcclLane::push() {
  if (echo_) {
    if (Clock::now() < echo_until_) return false;  // The group's failure may come first.
    std::rethrow_exception(echo_);
  }
  try {
    return push_now();
  } catch (const gpu::NcclFailed& failed) {
    // A rank that dies breaks connections before anybody has said who died.
    if (failed.result == gpu::nccl::Result::kRemoteError) throw PeerLost(-1, failed.what());
    if (failed.result != gpu::nccl::Result::kSystemError) throw;
    echo_ = std::current_exception();
    echo_until_ = Clock::now() + kVerdictTime;
    return false;
  }
}

bool NcclLane::push_now() {
  while (nccl_->settle()) {
    if (taken_) {
      taken_->done_.record(stream_);
      taken_->note_launched();
      taken_ = nullptr;
    }
    std::shared_ptr<NcclLaunch> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return true;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next->ready_.hold(stream_);
    nccl_->start(next->call_, stream_);
    taken_ = std::move(next);
  }
  return false;
}

void NcclLane::give_up() noexcept {
  nccl_->abort();
  taken_ = nullptr;
  const std::lock_guard lock(mutex_);
  waiting_.clear();
}

NcclLaunch::NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call, gradring_stream after)
    : lane_(std::move(lane)),
      call_(std::move(call)),
      ready_(lane_->device()),
      done_(lane_->device()) {
  ready_.record(after);
}

bool NcclLaunch::advance() {
  static_cast<void>(lane_->push());
  const std::lock_guard lock(mutex_);
  if (!is_launched_ || !done_.is_reached()) return false;
  is_over_ = true;
  return true;
}

void NcclLaunch::give_up() noexcept {
  lane_->give_up();
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void NcclLaunch::note_launched() {
  const std::lock_guard lock(mutex_);
  is_launched_ = true;
  changed_.notify_all();
}

bool NcclLaunch::wait_until_launched(Millis time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return is_launched_ || is_over_; });
  return is_launched_;
}

bool NcclStep::advance() {
  if (!lane_->push()) return false;
  if (!begin_) return true;
  std::exchange(begin_, nullptr)(lane_->nccl());
  return lane_->push();
}

}  // namespace gradring::collectives
