#include "collectives/device/gpu_hosts.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "collectives/device/nccl_lane.h"
#include "collectives/device/nccl_ranks.h"
#include "collectives/device/staged_rounds.h"

namespace gradring::collectives {
namespace {

class NcclOfHost final : public LocalGpus {
 public:
  explicit NcclOfHost(std::shared_ptr<NcclRanks> ranks)
      : met_(std::move(ranks)), lane_(met_->lane()) {}

  const gpu::Device& device() const override { return lane_->device(); }
  Rank rank() const override { return met_->rank(); }
  Rank ranks() const override { return met_->world_size(); }
  gpu::StreamView stream() const override { return lane_->stream(); }
  void start(const gpu::NcclCall& call) override {
    lane_->hand_in(std::make_shared<NcclLaunch>(lane_, call));
  }
  bool push() override { return lane_->push(); }
  void give_up() noexcept override { lane_->give_up(); }
  void leave() noexcept override { met_->leave(); }

 private:
  const std::shared_ptr<NcclRanks> met_;
  const std::shared_ptr<NcclLane> lane_;
};

// How long a GPU may take to come to rest when NCCL was told to end.
constexpr Millis kAbortTime{5000};

// The thread that drives puts a job's steps into the streams here, and is the one who tells them
// that a part has come: a job of more parts than a stream has room for would keep both waiting.
StagedLane::Options part_by_part(StagedLane::Options options) {
  options.may_wait = false;
  return options;
}

// What a rank tells all others of meeting its host's: nothing, or why not.
using Trouble = std::array<char, 512>;

std::vector<Trouble> exchange(Communicator& ranks, const Trouble& own, Millis timeout) {
  std::vector<Trouble> all(static_cast<std::size_t>(ranks.world_size()));
  Operation gather;
  gather.request.op = OpKind::kAllGather;
  gather.request.dtype = DType::kUInt8;
  gather.request.count = all.size() * sizeof own;
  gather.input = reinterpret_cast<const std::byte*>(own.data());
  gather.output = reinterpret_cast<std::byte*>(all.data());
  ranks.run(gather, timeout);
  return all;
}

}  // namespace

struct GpuHosts::Shared {
  Shared(const std::shared_ptr<Communicator>& all, std::unique_ptr<Level> level,
         std::unique_ptr<LocalGpus> gpus, const StagedLane::Options& options)
      : ranks(all->world_size()),
        across(std::move(level)),
        local(std::move(gpus)),
        lane(std::make_unique<StagedLane>(local->device().api(), local->device().index(),
                                          part_by_part(options))) {}
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  const Rank ranks;
  const std::unique_ptr<Level> across;
  const std::unique_ptr<LocalGpus> local;
  std::unique_ptr<StagedLane> lane;
  std::shared_ptr<StagedJob> last;  // Jobs end in order.
};

GpuHosts::Shared::~Shared() {
  local->leave();
  across->leave();
  const Time deadline = Clock::now() + kAbortTime;
  while (last && !last->is_over() && Clock::now() < deadline)
    std::this_thread::sleep_for(Millis{1});
  if (!last || last->is_over()) return;
  log_warning(-1, "the GPU does not end what NCCL does there; memory of it is not given back");
  static_cast<void>(lane.release());  // Its end would wait for the GPU for ever.
}

// One all_reduce, on the thread that drives the communicator.
class HostsReduction final : public Composition {
 public:
  HostsReduction(std::shared_ptr<GpuHosts::Shared> hosts, const Operation& operation,
                 gradring_stream user);

  void carry_out(Steps& steps) override;
  void give_up() noexcept override;

  GpuLaunch& launch() { return end_; }
  const gpu::Device& device() const { return hosts_->local->device(); }
  bool is_over() const;

 private:
  struct Extent {  // Elements.
    std::uint64_t begin = 0;
    std::uint64_t count = 0;
  };
  const std::byte* input(std::uint64_t at) const { return whole_.input + at * item_; }
  std::byte* output(std::uint64_t at) const { return whole_.output + at * item_; }
  gpu::NcclCall call(OpKind op, const Extent& extent) const;
  void add_up_inside();
  void spread_inside();
  void begin_across();
  void go_across(Steps& steps);
  bool push();

  const std::shared_ptr<GpuHosts::Shared> hosts_;
  const Operation whole_;
  const std::size_t item_;
  Extent even_;   // What divides into equal shares, one of each rank of the host.
  Extent rest_;   // A few elements: the last rank's, with its share.
  Extent share_;  // This rank's.
  gpu::Event ready_;
  GpuLaunch end_;
  gpu::Event quiet_;   // Where it has failed: what NCCL had in its stream. Never recorded: nothing.
  Operation between_;  // Of the share.
  std::shared_ptr<StagedJob> job_;
  bool is_spreading_ = false;  // Until all of it is launched.
};

HostsReduction::HostsReduction(std::shared_ptr<GpuHosts::Shared> hosts, const Operation& operation,
                               gradring_stream user)
    : hosts_(std::move(hosts)),
      whole_(operation),
      item_(item_bytes(operation.request.dtype)),
      ready_(device()),
      end_(device()),
      quiet_(device()) {
  const auto local_ranks = static_cast<std::uint64_t>(hosts_->local->ranks());
  const auto local_rank = static_cast<std::uint64_t>(hosts_->local->rank());
  const std::uint64_t each = whole_.request.count / local_ranks;
  even_ = {0, each * local_ranks};
  rest_ = {even_.count, whole_.request.count - even_.count};
  share_ = {each * local_rank, each + (local_rank + 1 == local_ranks ? rest_.count : 0)};
  ready_.record({device(), user});
}

bool HostsReduction::is_over() const {
  try {
    return (!job_ || job_->is_over()) && quiet_.is_passed();
  } catch (const DeviceError&) {
    return true;  // A device at fault does nothing any more.
  }
}

void HostsReduction::give_up() noexcept {
  if (job_) hosts_->lane->fail(*job_);
  hosts_->local->give_up();
  try {
    quiet_.record(hosts_->local->stream());
  } catch (const std::exception&) {
    // As above.
  }
  end_.note_over();
}

gpu::NcclCall HostsReduction::call(OpKind op, const Extent& extent) const {
  gpu::NcclCall call;
  call.op = op;
  call.dtype = whole_.request.dtype;
  // Averages are divided between the hosts.
  call.reduce_op =
      whole_.request.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : whole_.request.reduce_op;
  call.root = hosts_->local->ranks() - 1;
  call.count = extent.count;
  const auto local_ranks = static_cast<std::size_t>(hosts_->local->ranks());
  call.parts.assign(local_ranks, extent.count / local_ranks);
  return call;
}

// Every rank's share, with the sum of the host.
void HostsReduction::add_up_inside() {
  LocalGpus& local = *hosts_->local;
  local.stream().wait(ready_);
  if (even_.count > 0) {
    gpu::NcclCall shares = call(OpKind::kReduceScatter, even_);
    shares.input = input(even_.begin);
    shares.output = output(share_.begin);
    local.start(shares);
  }
  if (rest_.count > 0) {
    gpu::NcclCall rest = call(OpKind::kReduce, rest_);
    rest.input = input(rest_.begin);
    rest.output = output(rest_.begin);
    local.start(rest);
  }
}

void HostsReduction::spread_inside() {
  LocalGpus& local = *hosts_->local;
  is_spreading_ = true;
  if (job_) local.stream().wait(job_->end);
  if (even_.count > 0) {
    gpu::NcclCall shares = call(OpKind::kAllGather, even_);
    shares.input = output(share_.begin);
    shares.output = output(even_.begin);
    local.start(shares);
  }
  if (rest_.count > 0) {
    gpu::NcclCall rest = call(OpKind::kBroadcast, rest_);
    rest.input = rest.output = output(rest_.begin);
    local.start(rest);
  }
}

// Has NCCL take up what it was given; true when it has. Throws also what has happened to it since.
bool HostsReduction::push() {
  if (!hosts_->local->push()) return false;
  if (std::exchange(is_spreading_, false)) end_.note_launched(hosts_->local->stream());
  return true;
}

// The sums of the hosts, of one share: what comes into NCCL's stream from now on comes after.
void HostsReduction::begin_across() {
  if (share_.count == 0) return;
  between_ = whole_;
  between_.request.count = share_.count;
  if (between_.request.divisor == 0)
    between_.request.divisor = static_cast<std::uint32_t>(hosts_->ranks);
  between_.input = between_.output = output(share_.begin);
  StagedLane& lane = *hosts_->lane;
  const std::uint64_t slot_count = lane.options().slot_bytes / item_;
  job_ = lane.make_job(staged_rounds(hosts_->across->complete(between_), slot_count),
                       {whole_.request.dtype, between_.input, between_.output},
                       hosts_->local->stream());
  hosts_->last = job_;
  lane.begin(job_);
}

void HostsReduction::go_across(Steps& steps) {
  if (!job_) return;
  StagedLane& lane = *hosts_->lane;
  for (std::uint32_t round = 0; round < job_->rounds.size(); ++round) {
    const auto is_down = [&] {
      static_cast<void>(push());
      return lane.is_down(*job_, round);
    };
    steps.wait_until(is_down, "the GPUs of this host to add up");
    steps.run(*hosts_->across, part_of(between_, job_->rounds[round], lane.slot(*job_, round)));
    lane.sent(*job_, round);
  }
}

void HostsReduction::carry_out(Steps& steps) {
  steps.agree();
  add_up_inside();
  steps.wait_until([&] { return push(); }, "NCCL to take up the sum of this host");
  begin_across();
  go_across(steps);
  spread_inside();
  const auto is_passed = [&] { return push() && end_.is_passed(); };
  steps.wait_until(is_passed, "the GPUs of this host to spread the result");
  if (job_)
    job_->failure.with([](const Failure& failure) {
      if (failure) failure.raise();
    });
  end_.note_over();
}

void HostsWork::order(gradring_stream stream, Millis timeout) {
  reduction_->launch().order({reduction_->device(), stream}, *work_, timeout);
}

bool HostsWork::is_over() const {
  return work_->is_done() && reduction_->is_over();
}

std::unique_ptr<GpuHosts> GpuHosts::join(const std::shared_ptr<Communicator>& ranks, int device,
                                         const std::vector<Rank>& host_of, Millis timeout) {
  const auto own = static_cast<std::size_t>(ranks->rank());
  auto guard = ranks->split(host_of.at(own), ranks->rank(), timeout);
  std::vector<Rank> place_of;  // By rank: its number on its host.
  std::vector<Rank> seen(host_of.size());
  for (const Rank host : host_of) place_of.push_back(seen.at(static_cast<std::size_t>(host))++);
  std::vector<Rank> across;
  for (std::size_t rank = 0; rank < place_of.size(); ++rank)
    if (place_of[rank] == place_of[own]) across.push_back(static_cast<Rank>(rank));
  auto level = ranks->level(std::move(across));
  std::unique_ptr<GpuHosts> hosts;
  Trouble trouble{};
  try {
    auto met = NcclRanks::meet(std::move(guard), device, timeout);
    hosts = std::make_unique<GpuHosts>(ranks, std::move(level),
                                       std::make_unique<NcclOfHost>(std::move(met)));
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    std::string_view(error.what()).copy(trouble.data(), trouble.size() - 1);
    if (trouble[0] == 0) trouble[0] = '?';
  }
  // Other hosts may have taken all of the time until they knew.
  const auto troubles =
      exchange(*ranks, trouble, timeout + std::min(timeout, Millis{std::chrono::hours(24)}));
  for (std::size_t rank = 0; rank < troubles.size(); ++rank) {
    if (troubles[rank][0] == 0) continue;
    if (level) level->leave();
    throw DeviceError(
        str("NCCL inside the hosts cannot be used: ", ranks->describe(static_cast<Rank>(rank)),
            " says: ", troubles[rank].data()));
  }
  return hosts;
}

GpuHosts::GpuHosts(std::shared_ptr<Communicator> ranks, std::unique_ptr<Level> across,
                   std::unique_ptr<LocalGpus> local, const StagedLane::Options& options)
    : ranks_(std::move(ranks)),
      shared_(std::make_shared<Shared>(ranks_, std::move(across), std::move(local), options)) {}

// What is in flight goes on, and has the rest.
GpuHosts::~GpuHosts() = default;

int GpuHosts::device() const {
  return shared_->local->device().index();
}

bool GpuHosts::knows(const Operation& operation) {
  const Request& request = operation.request;
  if (request.op != OpKind::kAllReduce || operation.is_rank_ordered ||
      operation.algorithm != Algorithm::kAuto)
    return false;
  gpu::NcclCall inside;
  inside.dtype = request.dtype;
  inside.reduce_op = request.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : request.reduce_op;
  return gpu::nccl_knows(inside);
}

HostsWork GpuHosts::submit(const Operation& operation, gradring_stream stream, Millis timeout) {
  GRADRING_ASSERT(knows(operation));
  const Call call = call_of(operation);
  ranks_->check_usable(call);
  gpu::StreamView(shared_->local->device(), stream).refuse_capture();
  auto reduction = std::make_shared<HostsReduction>(shared_, operation, stream);
  auto work = ranks_->submit(call, reduction, timeout);
  return {ranks_, std::move(reduction), std::move(work)};
}

}  // namespace gradring::collectives
