// Staged collectives and what the GPU's driver does meanwhile: it captures a graph, or waits for a
// stream.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "collectives/device/staged.h"
#include "support/collectives/staged_rig.h"
#include "support/run_ranks.h"

namespace gradring::testing::staged_driver_test {
namespace {

using collectives::Communicator;
using collectives::Staged;
using collectives::StagedJob;
using collectives::StagedLane;
using collectives::StagedWork;

constexpr Staged::Options kSmallSlots{.slot_bytes = 4096, .slots = 3, .may_wait = true};
constexpr std::chrono::seconds kLongest{5};  // Then nothing will come of it.

TEST_CASE("a stream from which a graph is captured is refused, and the capture is left alone") {
  for (const gradring_gpu_api* const api : {&emulated_gpu(), &emulated_gpu_without_waits()}) {
    run_ranks({.ranks = 2}, [&](Communicator& comm) {
      Staged staged(comm.shared_from_this(), *api, kSmallSlots);
      const Prepared small = prepared({.world_size = 2, .count = 3000});
      const auto rank = static_cast<std::size_t>(comm.rank());
      DeviceCase mine(*api, small.c, small.all[rank], comm.rank());
      mine.operation().algorithm = small.c.algorithm;
      const gpu::Device device(*api, 0);
      const gpu::Stream user(device, false);
      const Staged::Place place{.device = 0, .stream = user.handle()};
      gradring_emulated_capture(0, user.handle(), 1);
      CHECK_THROWS_AS(staged.submit(mine.operation(), place, kPlenty), InvalidArgument);
      gradring_emulated_capture(0, user.handle(), 0);
      StagedWork work = staged.submit(mine.operation(), place, kPlenty);
      gradring_emulated_capture(0, user.handle(), 1);
      CHECK_THROWS_AS(work.wait(user, kPlenty), InvalidArgument);
      gradring_emulated_capture(0, user.handle(), 0);
      work.wait(kPlenty);
      CHECK(mine.output() == small.expected[rank]);
    });
    CHECK(std::string(gradring_emulated_fault(0)) == "");
  }
}

// A driver that answers no question about an event until it has come, as a real one may while
// another thread frees memory.
std::atomic<bool> is_busy{false};
std::atomic<bool> is_asked{false};
std::atomic<bool> was_stuck{false};

int query_when_it_has_come(gradring_event event) {
  const auto query = emulated_gpu().runtime->event_query;
  if (!is_busy) return query(event);
  is_asked = true;
  const Time deadline = Clock::now() + kLongest;
  while (query(event) == GRADRING_GPU_NOT_READY && !was_stuck) {
    if (Clock::now() > deadline) was_stuck = true;
    std::this_thread::yield();
  }
  return query(event);
}

const gradring_gpu_api& gpu_with_a_slow_driver() {
  static const gradring_gpu_runtime runtime = [] {
    gradring_gpu_runtime changed = *emulated_gpu().runtime;
    changed.event_query = &query_when_it_has_come;
    return changed;
  }();
  static const gradring_gpu_api api = emulated_gpu_with(runtime);
  return api;
}

TEST_CASE("who waits in the driver for a stream keeps nobody from what the stream waits for") {
  StagedLane lane(gpu_with_a_slow_driver(), 0, kSmallSlots);
  if (!lane.waits_on_memory()) return;  // Without kernels no stream waits.
  const gpu::Stream user(lane.device(), false);
  const gpu::DeviceMemory memory(lane.device(), kSmallSlots.slot_bytes);
  collectives::Request request;
  request.count = 1000;
  const auto make = [&] {
    return lane.make_job(collectives::staged_rounds(request, 1024),
                         {DType::kFloat32, memory.data(), memory.data()}, user);
  };
  const std::shared_ptr<StagedJob> first = make();
  lane.begin(first);
  while (!lane.is_down(*first, 0)) std::this_thread::yield();
  is_busy = true;
  std::shared_ptr<StagedJob> second;
  std::thread other([&] { second = make(); });  // Asks what has become of the first.
  while (!is_asked) std::this_thread::yield();
  lane.sent(*first, 0);
  other.join();
  is_busy = false;
  CHECK(!was_stuck);
  lane.fail(*second);
}

}  // namespace
}  // namespace gradring::testing::staged_driver_test
