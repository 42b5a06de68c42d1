// all_reduce of four ranks that play two hosts of two GPUs: inside a host through what stands for
// NCCL, between them staged. Each host's sum comes first, then that of the hosts, and what fails in
// one place fails everywhere, by name.
#include "collectives/device/gpu_hosts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "support/collectives/staged_rig.h"
#include "support/run_ranks.h"

namespace gradring::testing::gpu_hosts_test {
namespace {

using collectives::Communicator;
using collectives::GpuHosts;
using collectives::HostsWork;
using collectives::LocalGpus;
using collectives::StagedLane;

constexpr Rank kLocal = 2;
constexpr StagedLane::Options kSmallSlots{.slot_bytes = 4096, .slots = 3};

const gradring_gpu_api* const kGpus[] = {&emulated_gpu(), &emulated_gpu_without_waits()};

// Where the streams of a host's two GPUs meet.
class Host {
 public:
  // False: somebody has given up.
  bool meet() {
    std::unique_lock lock(mutex_);
    const int turn = turn_;
    if (++waiting_ == kLocal) {
      waiting_ = 0;
      ++turn_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return turn_ != turn || is_over_; });
    return turn_ != turn;
  }
  void give_up() {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  bool is_over() {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }

  std::array<std::vector<float>, kLocal> given;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  int turn_ = 0;
  bool is_over_ = false;
};

// What NCCL is to a host, with float32 alone: it adds in the order of ranks, in a stream.
class FakeGpus final : public LocalGpus {
 public:
  FakeGpus(std::shared_ptr<Host> host, Rank rank, const gradring_gpu_api& api)
      : host_(std::move(host)), rank_(rank), device_(api, 0), stream_(device_, true) {}

  const gpu::Device& device() const override { return device_; }
  Rank rank() const override { return rank_; }
  Rank ranks() const override { return kLocal; }
  gpu::StreamView stream() const override { return stream_; }
  bool push() override { return true; }
  void give_up() noexcept override { host_->give_up(); }
  void leave() noexcept override { host_->give_up(); }

  void start(const gpu::NcclCall& started) override {
    struct Turn {
      std::shared_ptr<Host> host;
      Rank rank;
      gpu::NcclCall call;
    };
    const auto carry_out = [](void* data) {
      const std::unique_ptr<Turn> turn(static_cast<Turn*>(data));
      if (turn->host->is_over()) return;  // The other may still be reading what was given last.
      const auto rank = static_cast<std::size_t>(turn->rank);
      const gpu::NcclCall& call = turn->call;
      const bool has_parts = call.op == OpKind::kReduceScatter || call.op == OpKind::kAllGather;
      const std::size_t each = has_parts ? call.parts[0] : call.count;
      // Nobody reads another's memory: it may have given up, and freed it.
      std::vector<float>& given = turn->host->given[rank];
      given.resize(call.op == OpKind::kReduceScatter ? kLocal * each : each);
      std::memcpy(given.data(), call.input, given.size() * sizeof(float));
      if (!turn->host->meet()) return;
      const std::vector<float> result = result_of(call, turn->host->given, rank);
      if (!turn->host->meet()) return;
      if (!result.empty()) std::memcpy(call.output, result.data(), result.size() * sizeof(float));
    };
    gradring_emulated_enqueue(0, stream_.handle(), carry_out, new Turn{host_, rank_, started});
  }

 private:
  static std::vector<float> result_of(const gpu::NcclCall& call,
                                      const std::array<std::vector<float>, kLocal>& given,
                                      std::size_t rank) {
    if (call.op == OpKind::kBroadcast) return given[1];
    if (call.op == OpKind::kAllGather) {
      std::vector<float> all = given[0];
      all.insert(all.end(), given[1].begin(), given[1].end());
      return all;
    }
    if (call.op == OpKind::kReduce && call.root != static_cast<Rank>(rank)) return {};
    const std::size_t begin = call.op == OpKind::kReduceScatter ? rank * call.parts[0] : 0;
    std::vector<float> sum(call.op == OpKind::kReduceScatter ? call.parts[0] : call.count);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const float a = given[0][begin + i];
      const float b = given[1][begin + i];
      sum[i] = call.reduce_op == ReduceOp::kMax ? std::max(a, b) : a + b;
    }
    return sum;
  }

  const std::shared_ptr<Host> host_;
  const Rank rank_;
  const gpu::Device device_;
  const gpu::Stream stream_;
};

// One rank's end, ranks 0 and 1 on one host, 2 and 3 on the other.
struct Rig {
  Rig(Communicator& comm, const gradring_gpu_api& api, std::array<std::shared_ptr<Host>, 2> all)
      : device(api, 0),
        user(device, false),
        hosts(comm.shared_from_this(), comm.level({comm.rank() % 2, comm.rank() % 2 + 2}),
              std::make_unique<FakeGpus>(all[static_cast<std::size_t>(comm.rank() / 2)],
                                         comm.rank() % kLocal, api),
              kSmallSlots) {}

  gpu::Device device;
  gpu::Stream user;
  GpuHosts hosts;
};

std::array<std::shared_ptr<Host>, 2> two_hosts() {
  return {std::make_shared<Host>(), std::make_shared<Host>()};
}

// Sums of these differ with the order in which they are added.
float value_of(Rank rank, std::uint64_t i) {
  const auto mixed =
      static_cast<std::uint32_t>((i + 1) * 2654435761u * (7 * std::uint32_t(rank) + 3));
  return (static_cast<float>(mixed >> 8) / 8388608.0f - 1.0f) * (mixed % 3 == 0 ? 1000.0f : 1.0f);
}

float result_of(ReduceOp op, std::uint64_t i) {
  const float x[] = {value_of(0, i), value_of(1, i), value_of(2, i), value_of(3, i)};
  if (op == ReduceOp::kMax) return std::max({x[0], x[1], x[2], x[3]});
  const float sum = (x[0] + x[1]) + (x[2] + x[3]);
  return op == ReduceOp::kAvg ? sum / 4.0f : sum;
}

Memory memory_for(const PlanCase& c, Rank rank) {
  Memory memory = memory_of(c)[static_cast<std::size_t>(rank)];
  memory.bytes.resize(
      std::max(memory.input_at + memory.input_bytes, memory.output_at + memory.output_bytes));
  for (std::uint64_t i = 0; i < c.count; ++i) {
    const float value = value_of(rank, i);
    std::memcpy(memory.bytes.data() + memory.input_at + i * sizeof value, &value, sizeof value);
  }
  return memory;
}

bool is_right(const DeviceCase& mine, const PlanCase& c) {
  const reference::Buffer bytes = mine.output();
  for (std::uint64_t i = 0; i < c.count; ++i) {
    const float right = result_of(c.reduce_op, i);
    if (std::memcmp(bytes.data() + i * sizeof right, &right, sizeof right) != 0) return false;
  }
  return bytes.size() == c.count * sizeof(float);
}

TEST_CASE("the sum of each host comes first, then that of the hosts, for any number of elements") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto hosts = two_hosts();
    std::atomic<int> wrong{0};
    run_ranks({.ranks = 4}, [&](Communicator& comm) {
      Rig rig(comm, *api, hosts);
      for (const std::uint64_t count : {0, 1, 2, 5, 1024, 9001}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
          PlanCase c{.world_size = 4, .count = count, .reduce_op = op};
          c.is_in_place = count % 2 == 1;
          DeviceCase mine(*api, c, memory_for(c, comm.rank()), comm.rank());
          HostsWork work = rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty);
          work.wait(kPlenty);
          if (!work.is_over() || !is_right(mine, c)) ++wrong;
        }
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("a share of more parts than a stream has room for comes through") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto hosts = two_hosts();
    std::atomic<int> wrong{0};
    run_ranks({.ranks = 4}, [&](Communicator& comm) {
      Rig rig(comm, *api, hosts);
      const PlanCase c{.world_size = 4,
                       .count = kLocal * 400 * kSmallSlots.slot_bytes / sizeof(float)};
      DeviceCase mine(*api, c, memory_for(c, comm.rank()), comm.rank());
      HostsWork work = rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty);
      work.wait(kPlenty);
      if (!is_right(mine, c)) ++wrong;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("a stream from which a graph is captured is refused before anything is sent") {
  const auto hosts = two_hosts();
  run_ranks({.ranks = 4}, [&](Communicator& comm) {
    Rig rig(comm, emulated_gpu(), hosts);
    const PlanCase c{.world_size = 4, .count = 1000};
    DeviceCase mine(emulated_gpu(), c, memory_for(c, comm.rank()), comm.rank());
    gradring_emulated_capture(0, rig.user.handle(), 1);
    CHECK_THROWS_AS(rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty),
                    InvalidArgument);
    gradring_emulated_capture(0, rig.user.handle(), 0);
    rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty).wait(kPlenty);
    CHECK(is_right(mine, c));
  });
  CHECK(std::string(gradring_emulated_fault(0)) == "");
}

TEST_CASE("it comes after what is in the user's stream, and before what comes there") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto hosts = two_hosts();
    std::atomic<int> wrong{0};
    run_ranks({.ranks = 4}, [&](Communicator& comm) {
      Rig rig(comm, *api, hosts);
      PlanCase c{.world_size = 4, .count = 5003};
      c.is_in_place = true;
      const Memory memory = memory_for(c, comm.rank());
      gpu::PinnedMemory before(rig.device, memory.bytes.size());
      gpu::PinnedMemory after(rig.device, memory.bytes.size());
      std::memcpy(before.data(), memory.bytes.data(), before.bytes());
      Memory empty = memory;
      std::fill(empty.bytes.begin(), empty.bytes.end(), std::byte{0});
      DeviceCase mine(*api, c, empty, comm.rank());
      std::vector<HostsWork> works;
      for (int turn = 0; turn < 3; ++turn) {  // All in flight at once.
        rig.user.copy(mine.at(0), before.data(), before.bytes());
        works.push_back(rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty));
        works.back().order(rig.user.handle(), kPlenty);
        rig.user.copy(after.data(), mine.at(0), after.bytes());
      }
      rig.user.synchronize();
      for (std::uint64_t i = 0; i < c.count; ++i) {
        const float right = result_of(c.reduce_op, i);
        if (std::memcmp(after.data() + memory.output_at + i * sizeof right, &right, sizeof right) !=
            0)
          ++wrong;
      }
      for (HostsWork& work : works) work.wait(kPlenty);
    });
    CHECK(wrong == 0);
  }
}

// Runs until somebody fails: what each rank ended with.
std::vector<Failure> ends_of(
    const gradring_gpu_api& api, Millis timeout,
    const std::function<bool(Communicator&, Rig&)>& takes_part,
    const std::function<void()>& when_failed = [] {}) {
  const auto hosts = two_hosts();
  return end_of_ranks({.ranks = 4}, [&](Communicator& comm) {
    Rig rig(comm, api, hosts);
    const PlanCase c{.world_size = 4, .count = 20'003};
    DeviceCase mine(api, c, memory_for(c, comm.rank()), comm.rank());
    // Also of the first, which a slow rank may still be in when the others are told to fail.
    const auto wait = [&](HostsWork& work) {
      try {
        work.wait(kPlenty);
      } catch (...) {
        when_failed();
        while (!work.is_over()) std::this_thread::yield();  // Only then its memory may go.
        throw;
      }
    };
    HostsWork first = rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty);
    wait(first);
    if (!takes_part(comm, rig)) return;
    HostsWork second = rig.hosts.submit(mine.operation(), rig.user.handle(), timeout);
    wait(second);
  });
}

TEST_CASE("different calls are a mismatch on both hosts before anything is added") {
  const gradring_gpu_api& api = emulated_gpu();
  const auto hosts = two_hosts();
  std::atomic<int> wrong{0};
  const auto ends = end_of_ranks({.ranks = 4}, [&](Communicator& comm) {
    Rig rig(comm, api, hosts);
    PlanCase c{.world_size = 4, .count = 1000};
    if (comm.rank() == 2) c.reduce_op = ReduceOp::kMax;
    DeviceCase mine(api, c, memory_for(c, comm.rank()), comm.rank());
    const reference::Buffer before = mine.bytes();
    try {
      rig.hosts.submit(mine.operation(), rig.user.handle(), kPlenty).wait(kPlenty);
    } catch (...) {
      if (mine.bytes() != before) ++wrong;
      throw;
    }
  });
  CHECK(wrong == 0);
  for (const Failure& end : ends) {
    CAPTURE(end.text);
    CHECK(end.kind == ErrorKind::kMismatch);
    CHECK(end.text.find("float32 x 1000, max") != std::string::npos);
  }
}

TEST_CASE("a rank that is lost is named on every host, and no stream is left hanging") {
  for (const gradring_gpu_api* const api : kGpus) {
    const gradring_emulated_counts before = emulated_counts();
    const auto ends = ends_of(
        *api, kPlenty, [](const Communicator& comm, const Rig&) { return comm.rank() != 3; });
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CAPTURE(ends[rank].text);
      CHECK(ends[rank].kind == ErrorKind::kPeerLost);
      CHECK(ends[rank].rank == 3);
      CHECK(ends[rank].text.find("all_reduce") != std::string::npos);
    }
    CHECK(emulated_gpu_comes_to_rest(kPlenty));
    const gradring_emulated_counts after = emulated_counts();
    CHECK(after.device_allocations == before.device_allocations);
    CHECK(after.pinned_allocations == before.pinned_allocations);
    CHECK(after.streams == before.streams);
    CHECK(after.events == before.events);
    CHECK(std::string(gradring_emulated_fault(0)) == "");
  }
}

TEST_CASE("a GPU that never gets there is what all ranks' time is over for") {
  for (const gradring_gpu_api* const api : kGpus) {
    const gpu::Device device(*api, 0);
    gpu::PinnedMemory gate(device, sizeof(std::uint32_t));
    auto* const word = reinterpret_cast<std::uint32_t*>(gate.data());
    *word = 0;
    const auto shuts_a_stream = [&](const Communicator& comm, const Rig& rig) {
      if (comm.rank() == 2)
        emulated_gpu().runtime->stream_wait_value(0, rig.user.handle(), word, 1);
      return true;
    };
    const auto open = [&] { std::atomic_ref<std::uint32_t>(*word).store(1); };
    const auto ends = ends_of(*api, Millis{300}, shuts_a_stream, open);
    for (const Failure& end : ends) {
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kTimedOut);
      CHECK(end.text.find("not finished within its timeout of 0.3 s") != std::string::npos);
    }
    CHECK(emulated_gpu_comes_to_rest(kPlenty));
  }
}

TEST_CASE("what a device refuses on the way between hosts is a DeviceError on every rank") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto ends = ends_of(*api, kPlenty, [](Communicator& comm, const Rig&) {
      if (comm.rank() == 1) gradring_emulated_fail("copy", 5);
      return true;
    });
    for (const Failure& end : ends) {
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kDeviceError);
      CHECK(end.text.find("could not copy: a failure that the test asked for") !=
            std::string::npos);
    }
  }
}

}  // namespace
}  // namespace gradring::testing::gpu_hosts_test
