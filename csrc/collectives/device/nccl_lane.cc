#include "collectives/device/nccl_lane.h"

#include "base/error.h"
#include "gpu/plugin.h"

namespace gradring::collectives {
namespace {

// How long the monitor may take to say which rank is behind an error of NCCL's.
constexpr Millis kBlameTime{1500};

}  // namespace

NcclLane::NcclLane(std::unique_ptr<gpu::NcclCommunicator> nccl, int device)
    : device_(gpu::devices(), device), stream_(device_, true), nccl_(std::move(nccl)) {}

void NcclLane::hand_in(std::shared_ptr<NcclLaunch> launch) {
  const std::lock_guard lock(mutex_);
  if (!is_over_) waiting_.push_back(std::move(launch));
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
    echo_until_ = Clock::now() + kBlameTime;
    return false;
  }
}

// NCCL goes by the device of the thread. That is the communicator's own, so it may keep it; with
// none it would get device 0.
bool NcclLane::push_now() {
  device_.check(device_.runtime().use_device(device_.index()), "become a thread's device");
  while (nccl_->settle()) {
    if (taken_) {
      taken_->end_.note_launched(stream_);
      taken_ = nullptr;
    }
    std::shared_ptr<NcclLaunch> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return true;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    stream_.wait(next->ready_);
    nccl_->start(next->call_, stream_.handle());
    taken_ = std::move(next);
  }
  return false;
}

void NcclLane::give_up() noexcept {
  nccl_->abort();
  taken_ = nullptr;
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  waiting_.clear();
}

void NcclLane::leave() noexcept {
  if (!echo_ && !taken_) nccl_->leave();
  give_up();
}

NcclLaunch::NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call)
    : lane_(std::move(lane)),
      call_(std::move(call)),
      ready_(lane_->device()),
      end_(lane_->device()) {}

NcclLaunch::NcclLaunch(std::shared_ptr<NcclLane> lane, gpu::NcclCall call, gradring_stream after)
    : NcclLaunch(std::move(lane), std::move(call)) {
  ready_.record({lane_->device(), after});
}

bool NcclLaunch::advance() {
  static_cast<void>(lane_->push());
  if (!end_.is_passed()) return false;
  end_.note_over();
  return true;
}

void NcclLaunch::give_up() noexcept {
  lane_->give_up();
  end_.note_over();
}

bool NcclStep::advance() {
  if (!lane_->push()) return false;
  if (!begin_) return true;
  std::exchange(begin_, nullptr)(lane_->nccl());
  return lane_->push();
}

}  // namespace gradring::collectives
