// Collectives on an emulated GPU's memory, by ranks that are threads: the bits of host memory, the
// user's order of streams, and nothing that hangs or is written when something fails.
#include "collectives/device/staged.h"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <random>
#include <string>
#include <thread>

#include "support/collectives/staged_rig.h"
#include "support/run_ranks.h"

namespace gradring::testing::staged_test {
namespace {

using collectives::Algorithm;
using collectives::Communicator;
using collectives::Staged;
using collectives::StagedWork;

constexpr Staged::Options kSmallSlots{.slot_bytes = 4096, .slots = 3, .may_wait = true};

const gradring_gpu_api* const kGpus[] = {&emulated_gpu(), &emulated_gpu_without_waits()};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A user's stream, which does nothing before open() is called if it is made shut.
class UserStream {
 public:
  explicit UserStream(const gradring_gpu_api& api, bool is_shut = false)
      : device_(api, 0), stream_(device_, false), gate_(device_, sizeof(std::uint32_t)) {
    auto* const word = reinterpret_cast<std::uint32_t*>(gate_.data());
    *word = 0;
    // What the stream does before it gets here is no business of the lane: any device can do it.
    if (is_shut) emulated_gpu().runtime->stream_wait_value(0, stream_.handle(), word, 1);
  }
  ~UserStream() {
    open();
    stream_.synchronize();
  }
  void open() {
    auto* const word = reinterpret_cast<std::uint32_t*>(gate_.data());
    std::atomic_ref<std::uint32_t>(*word).store(1, std::memory_order_release);
  }
  gpu::StreamView view() const { return stream_; }
  Staged::Place place() const { return {.device = 0, .stream = stream_.handle()}; }

 private:
  gpu::Device device_;
  gpu::Stream stream_;
  gpu::PinnedMemory gate_;
};

bool is_right(Communicator& comm, Staged& staged, const gradring_gpu_api& api,
              const Prepared& prepared) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  DeviceCase mine(api, prepared.c, prepared.all[rank], comm.rank());
  mine.operation().algorithm = prepared.c.algorithm;
  UserStream user(api);
  StagedWork work = staged.submit(mine.operation(), user.place(), kPlenty);
  work.wait(kPlenty);
  return work.is_over() && mine.output() == prepared.expected[rank];
}

// On a communicator of its own; how often any rank got other bits than it must.
int wrong_results(const gradring_gpu_api& api, const Job& job, const std::vector<Prepared>& cases) {
  std::atomic<int> wrong{0};
  run_ranks(job, [&](Communicator& comm) {
    Staged staged(comm.shared_from_this(), api, kSmallSlots);
    for (const Prepared& each : cases)
      if (!is_right(comm, staged, api, each)) ++wrong;
  });
  return wrong;
}

constexpr OpKind kOps[] = {OpKind::kBarrier,   OpKind::kAllReduce, OpKind::kReduceScatter,
                           OpKind::kAllGather, OpKind::kBroadcast, OpKind::kReduce,
                           OpKind::kGather,    OpKind::kScatter,   OpKind::kAllToAll};

TEST_CASE("every staged operation gives the documented bits, however many rounds it takes") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    std::vector<Prepared> cases;
    for (const OpKind op : kOps) {
      for (const std::uint64_t count : {0, 1, 1003, 20'011}) {
        PlanCase c{.op = op, .world_size = ranks, .count = count, .root = ranks - 1};
        c.is_in_place = count % 2 == 0 && op != OpKind::kAllToAll;
        c.has_uneven_counts =
            count == 1003 &&
            (op == OpKind::kReduceScatter || op == OpKind::kAllGather || op == OpKind::kAllToAll);
        cases.push_back(prepared(c));
      }
    }
    for (const gradring_gpu_api* const api : kGpus)
      CHECK(wrong_results(*api, {.ranks = ranks}, cases) == 0);
  }
}

TEST_CASE("staged reductions keep their bits for every algorithm, type and operator") {
  std::vector<Prepared> cases;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalving,
                                    Algorithm::kDirect, Algorithm::kGather})
    cases.push_back(prepared({.world_size = 3, .count = 7003}, algorithm));
  for (const DType dtype : {DType::kFloat64, DType::kBFloat16, DType::kInt8, DType::kInt64})
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax})
      cases.push_back(prepared({.world_size = 3, .count = 9001, .dtype = dtype, .reduce_op = op}));
  for (const gradring_gpu_api* const api : kGpus)
    CHECK(wrong_results(*api, {.ranks = 3, .mode = TransportMode::kTcp}, cases) == 0);
}

TEST_CASE("a GPU that lacks waits on memory, or this build's kernels, is served part by part") {
  std::vector<Prepared> cases;
  for (const OpKind op : kOps)
    cases.push_back(prepared({.op = op, .world_size = 2, .count = 20'011, .root = 1}));
  for (const gradring_gpu_api* const api :
       {&emulated_gpu_that_refuses_waits(), &emulated_gpu_without_code()}) {
    run_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      CHECK(contains(staged.describe(0), "its streams are fed by the host"));
    });
    CHECK(wrong_results(*api, {.ranks = 2}, cases) == 0);
  }
}

TEST_CASE("an array of more parts than a stream has room for comes through") {
  const PlanCase c{.world_size = 2, .count = 400 * kSmallSlots.slot_bytes / sizeof(float)};
  for (const gradring_gpu_api* const api : kGpus)
    CHECK(wrong_results(*api, {.ranks = 2}, {prepared(c)}) == 0);
}

TEST_CASE("staged work comes after what is in the user's stream, and before what comes there") {
  for (const gradring_gpu_api* const api : kGpus) {
    std::atomic<int> wrong{0};
    run_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      PlanCase c{.world_size = 2, .count = 5000};
      c.is_in_place = true;
      c = ordered(c);
      const std::vector<Memory> all = random_memory(c, 5);
      const auto rank = static_cast<std::size_t>(comm.rank());
      const gpu::Device device(*api, 0);
      gpu::PinnedMemory before(device, all[rank].bytes.size());
      gpu::PinnedMemory after(device, all[rank].bytes.size());
      std::copy(all[rank].bytes.begin(), all[rank].bytes.end(), before.data());
      Memory empty = all[rank];
      std::fill(empty.bytes.begin(), empty.bytes.end(), std::byte{0});
      DeviceCase mine(*api, c, empty, comm.rank());
      UserStream user(*api, true);
      user.view().copy(mine.at(0), before.data(), before.bytes());
      StagedWork work = staged.submit(mine.operation(), user.place(), kPlenty);
      CHECK(!work.is_done());
      // Where the device cannot wait on memory, or has no kernels that could, the host has to.
      if (!contains(staged.describe(0), "its streams wait on memory")) user.open();
      work.wait(user.view(), kPlenty);
      user.view().copy(after.data(), mine.at(0), after.bytes());
      user.open();
      user.view().synchronize();
      const reference::Buffer got(after.data(), after.data() + after.bytes());
      if (got != expected_outputs(c, all)[rank]) ++wrong;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("many staged works are in flight at once, and share the communicator with others") {
  for (const gradring_gpu_api* const api : kGpus) {
    std::atomic<int> wrong{0};
    run_ranks({.ranks = 3}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      const auto rank = static_cast<std::size_t>(comm.rank());
      std::mt19937 same_everywhere(7);
      std::vector<PlanCase> cases;
      std::vector<std::vector<Memory>> memories;
      std::vector<std::unique_ptr<DeviceCase>> devices;
      std::vector<StagedWork> works;
      UserStream user(*api);
      for (std::uint64_t i = 0; i < 25; ++i) {
        PlanCase c{.world_size = 3, .count = same_everywhere() % 6000};
        c = ordered(c);
        memories.push_back(random_memory(c, i));
        cases.push_back(c);
        devices.push_back(
            std::make_unique<DeviceCase>(*api, c, memories.back()[rank], comm.rank()));
        works.push_back(staged.submit(devices.back()->operation(), user.place(), kPlenty));
        if (i % 10 == 0) barrier(comm);
      }
      for (StagedWork& work : works) work.wait(kPlenty);
      for (std::size_t i = 0; i < cases.size(); ++i)
        if (devices[i]->output() != expected_outputs(cases[i], memories[i])[rank]) ++wrong;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("losing a peer ends staged work by name: no stream hangs, nothing more is written") {
  for (const gradring_gpu_api* const api : kGpus) {
    const gradring_emulated_counts before = emulated_counts();
    std::latch submitted(3);
    const auto ends = end_of_ranks({.ranks = 3}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      PlanCase c{.world_size = 3, .count = 50'000};
      c = ordered(c);
      const auto rank = static_cast<std::size_t>(comm.rank());
      const std::vector<Memory> all = random_memory(c, 1);
      DeviceCase first(*api, c, all[rank], comm.rank());
      DeviceCase second(*api, c, all[rank], comm.rank());
      UserStream user(*api);
      StagedWork one = staged.submit(first.operation(), user.place(), kPlenty);
      one.wait(kPlenty);
      if (comm.rank() == 2) return submitted.arrive_and_wait();  // It leaves.
      const reference::Buffer untouched = second.bytes();
      StagedWork two = staged.submit(second.operation(), user.place(), kPlenty);
      StagedWork three = staged.submit(first.operation(), user.place(), kPlenty);
      submitted.arrive_and_wait();
      try {
        two.wait(user.view(), kPlenty);
      } catch (const PeerLost&) {  // It may be known already.
      }
      CHECK_THROWS_AS(three.wait(kPlenty), Error);
      user.view().synchronize();
      const Time deadline = Clock::now() + kPlenty;
      while (!(two.is_over() && three.is_over()) && Clock::now() < deadline)
        std::this_thread::yield();
      CHECK(two.is_over());
      CHECK(three.is_over());
      CHECK(second.bytes() == untouched);
      two.wait(kPlenty);
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CAPTURE(ends[rank].text);
      CHECK(ends[rank].kind == ErrorKind::kPeerLost);
      CHECK(ends[rank].rank == 2);
      CHECK(contains(ends[rank].text, "rank 2"));
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

TEST_CASE("a stream that never gets there is named when the time is over") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto ends = end_of_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      PlanCase c{.world_size = 2, .count = 3000};
      c = ordered(c);
      DeviceCase mine(*api, c, random_memory(c, 1)[static_cast<std::size_t>(comm.rank())],
                      comm.rank());
      UserStream user(*api, true);
      StagedWork work = staged.submit(mine.operation(), user.place(), Millis{300});
      try {
        work.wait(kPlenty);
      } catch (...) {
        user.open();
        while (!work.is_over()) std::this_thread::yield();
        throw;
      }
    });
    for (const Failure& end : ends) {
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kTimedOut);
      CHECK(contains(end.text, "GPU 0 did not bring its data within 0.3 s"));
    }
  }
}

TEST_CASE("what a device refuses is a DeviceError on every rank") {
  for (const gradring_gpu_api* const api : kGpus) {
    const auto ends = end_of_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      PlanCase c{.world_size = 2, .count = 30'000};
      c = ordered(c);
      DeviceCase mine(*api, c, random_memory(c, 1)[static_cast<std::size_t>(comm.rank())],
                      comm.rank());
      UserStream user(*api);
      barrier(comm);
      if (comm.rank() == 0) gradring_emulated_fail("copy", 7);
      StagedWork work = staged.submit(mine.operation(), user.place(), kPlenty);
      try {
        work.wait(kPlenty);
      } catch (...) {
        while (!work.is_over()) std::this_thread::yield();
        throw;
      }
    });
    for (const Failure& end : ends) {
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kDeviceError);
      CHECK(contains(end.text, "could not copy: a failure that the test asked for"));
    }
  }
}

TEST_CASE("a communicator that is closed gives back what waits in its queue") {
  for (const gradring_gpu_api* const api : kGpus) {
    run_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      PlanCase c{.world_size = 2, .count = 30'000};
      c = ordered(c);
      DeviceCase mine(*api, c, random_memory(c, 1)[static_cast<std::size_t>(comm.rank())],
                      comm.rank());
      UserStream user(*api, true);
      std::vector<StagedWork> works;
      for (int i = 0; i < 5; ++i)
        works.push_back(staged.submit(mine.operation(), user.place(), kPlenty));
      comm.close();
      user.open();
      for (StagedWork& work : works) {
        CHECK_THROWS_AS(work.wait(kPlenty), Error);
        while (!work.is_over()) std::this_thread::yield();
      }
      user.view().synchronize();
    });
  }
  CHECK(emulated_gpu_comes_to_rest(kPlenty));
}

}  // namespace
}  // namespace gradring::testing::staged_test
