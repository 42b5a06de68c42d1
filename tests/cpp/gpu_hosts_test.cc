// all_reduce of four ranks that play two hosts of two GPUs: inside a host through what stands for
// NCCL, between them staged.
#include "collectives/gpu_hosts.h"

#include <doctest/doctest.h>

#include <barrier>
#include <cstring>
#include <string>

#include "support/run_ranks.h"
#include "support/staged_rig.h"

namespace gradring::testing {
namespace {

using collectives::Communicator;
using collectives::GpuHosts;
using collectives::LocalGpus;

constexpr Rank kLocal = 2;

// What two GPUs of a host have to meet: both are threads here, and device memory is host memory.
struct Host {
  std::barrier<> barrier{kLocal};
  const float* inputs[kLocal] = {};
  float* outputs[kLocal] = {};
};

// Small whole numbers, whose sums are exact in every order: (rank + 1) * (i % 7).
std::vector<Memory> small_numbers(const PlanCase& c) {
  std::vector<Memory> memory = memory_of(c);
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    memory[rank].bytes.resize(c.count * sizeof(float));
    for (std::uint64_t i = 0; i < c.count; ++i) {
      const float value = static_cast<float>((rank + 1) * (i % 7));
      std::memcpy(memory[rank].bytes.data() + memory[rank].input_at + i * sizeof value, &value,
                  sizeof value);
    }
  }
  return memory;
}

class FakeNccl final : public LocalGpus {
 public:
  FakeNccl(Host& host, Rank rank) : host_(host), rank_(rank) {}
  Rank rank() const override { return rank_; }
  Rank ranks() const override { return kLocal; }

  void reduce_scatter(const void* input, void* output, std::uint64_t count_each,
                      const collectives::Request&, gradring_stream stream) override {
    const auto at = static_cast<std::size_t>(rank_);
    host_.inputs[at] = static_cast<const float*>(input);
    meet(stream);
    std::vector<float> sums(count_each);
    for (std::uint64_t i = 0; i < count_each; ++i)
      sums[i] = host_.inputs[0][at * count_each + i] + host_.inputs[1][at * count_each + i];
    host_.barrier.arrive_and_wait();
    std::memcpy(output, sums.data(), count_each * sizeof(float));
    host_.barrier.arrive_and_wait();
  }

  void all_gather(const void*, void* output, std::uint64_t count_each, DType,
                  gradring_stream stream) override {
    host_.outputs[rank_] = static_cast<float*>(output);
    meet(stream);
    const auto other = static_cast<std::size_t>(1 - rank_);
    std::memcpy(host_.outputs[rank_] + other * count_each,
                host_.outputs[other] + other * count_each, count_each * sizeof(float));
    host_.barrier.arrive_and_wait();
  }

 private:
  void meet(gradring_stream stream) {
    emulated_gpu().runtime->stream_synchronize(0, stream);
    host_.barrier.arrive_and_wait();
  }

  Host& host_;
  Rank rank_;
};

TEST_CASE("ranks of several GPUs a host add up inside the host first, and all get one result") {
  for (const gradring_gpu_api* const api : {&emulated_gpu(), &emulated_gpu_without_waits()}) {
    Host hosts[2];
    run_ranks({.ranks = 4}, [&](Communicator& comm) {
      const Rank local = comm.rank() % kLocal;
      const auto across = comm.split(local, comm.rank(), kPlenty);
      GpuHosts gpus(comm.shared_from_this(), across,
                    std::make_unique<FakeNccl>(hosts[comm.rank() / kLocal], local), *api,
                    {.slot_bytes = 4096, .slots = 3});
      for (const std::uint64_t count : {0, 1, 5, 9001}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
          PlanCase c{.world_size = 4, .count = count, .reduce_op = op};
          c.is_in_place = true;
          const auto rank = static_cast<std::size_t>(comm.rank());
          const std::vector<Memory> memory = small_numbers(c);
          DeviceCase mine(*api, c, memory[rank], comm.rank());
          const gpu::Device device(*api, 0);
          const gpu::Stream stream(device, false);
          auto flight = gpus.all_reduce(mine.operation(), {0, stream.handle()}, kPlenty);
          flight.wait(kPlenty);
          stream.synchronize();
          std::vector<float> got(count);
          const reference::Buffer bytes = mine.output();
          if (count > 0) std::memcpy(got.data(), bytes.data(), bytes.size());
          const float right = op == ReduceOp::kSum ? 10.0f : 2.5f;
          for (std::uint64_t i = 0; i < count; ++i)
            REQUIRE(got[i] == right * static_cast<float>(i % 7));
        }
      }
      across->close();
    });
  }
}

}  // namespace
}  // namespace gradring::testing
