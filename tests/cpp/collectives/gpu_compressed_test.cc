// Compressed sums of vectors on an emulated GPU, by ranks that are threads: the bits of host
// memory, and when something fails nothing hangs and vector and residual are as they were.
#include "collectives/device/gpu_compressed.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "support/collectives/staged_rig.h"
#include "support/run_ranks.h"

namespace gradring::testing::gpu_compressed_test {
namespace {

using collectives::Communicator;
using collectives::Compressed;
using collectives::GpuCompressed;
using collectives::GpuCompressedWork;
using kernels::Codec;
using kernels::CodecKind;

constexpr Codec kCodecs[] = {{CodecKind::kBFloat16, 1},
                             {CodecKind::kFloat16, 1},
                             {CodecKind::kInt8, 1},
                             {CodecKind::kTopK, 0.1}};

using Floats = std::vector<float>;

Floats values_of(Rank rank, std::size_t count) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto mixed = static_cast<std::uint32_t>((i + 1) * 2654435761u * (7 * unsigned(rank) + 3));
    values[i] = static_cast<float>(mixed >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

bool is_same(const Floats& a, const Floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// A vector and its residual on GPU 0, which is host memory, and the stream they were made in.
class OnGpu {
 public:
  explicit OnGpu(const Floats& values)
      : device_(emulated_gpu(), 0),
        count_(values.size()),
        memory_(device_, 2 * values.size() * sizeof(float) + 1),
        stream_(device_, false),
        gate_(device_, sizeof(std::uint32_t)) {
    std::memset(memory_.data(), 0, memory_.bytes());
    if (count_ > 0) std::memcpy(memory_.data(), values.data(), count_ * sizeof(float));
    std::memset(gate_.data(), 0, gate_.bytes());
  }
  ~OnGpu() {
    open();
    stream_.synchronize();
  }
  // Nothing that comes now happens before open().
  void shut() {
    auto* const word = reinterpret_cast<std::uint32_t*>(gate_.data());
    emulated_gpu().runtime->stream_wait_value(0, stream_.handle(), word, 1);
  }
  void open() {
    auto* const word = reinterpret_cast<std::uint32_t*>(gate_.data());
    std::atomic_ref<std::uint32_t>(*word).store(1, std::memory_order_release);
  }

  Compressed call(const Codec& codec) const {
    auto* const floats = reinterpret_cast<float*>(memory_.data());
    return {codec, count_, floats, floats + count_, nullptr};
  }
  GpuCompressed::Place place() const { return {.device = 0, .streams = {stream_.handle()}}; }
  gpu::StreamView stream() const { return stream_; }
  // Both. Nothing of the GPU may be at work on them.
  Floats contents() const {
    Floats all(2 * count_);
    if (count_ > 0) std::memcpy(all.data(), memory_.data(), all.size() * sizeof(float));
    return all;
  }

 private:
  gpu::Device device_;
  std::size_t count_;
  gpu::DeviceMemory memory_;
  gpu::Stream stream_;
  gpu::PinnedMemory gate_;
};

TEST_CASE("a compressed sum on a GPU has the bits of host memory, residuals too") {
  std::atomic<int> wrong{0};
  run_ranks({.ranks = 3}, [&](Communicator& comm) {
    GpuCompressed sums(comm.shared_from_this(), emulated_gpu());
    const double divisor = 3;
    for (const Codec& codec : kCodecs) {
      for (const std::size_t count : {0, 1, 1003, 40'001}) {
        Floats host = values_of(comm.rank(), count);
        OnGpu mine(host);
        host.resize(2 * count);
        Compressed what{codec, count, host.data(), host.data() + count, &divisor};
        comm.wait(*comm.submit(what, kPlenty), kPlenty);
        what = mine.call(codec);
        what.divisor_at = &divisor;
        REQUIRE(sums.knows(what, 0));
        GpuCompressedWork work = sums.submit(what, mine.place(), kPlenty);
        work.wait(kPlenty);
        if (!is_same(mine.contents(), host)) ++wrong;
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(std::string(gradring_emulated_fault(0)) == "");
}

TEST_CASE("a GPU that the plugin is not compiled for encodes nothing") {
  run_ranks({.ranks = 1}, [&](Communicator& comm) {
    GpuCompressed sums(comm.shared_from_this(), emulated_gpu_without_code());
    for (const Codec& codec : kCodecs) CHECK(!sums.knows({.codec = codec, .count = 1000}, 0));
  });
}

TEST_CASE("a compressed sum refuses a stream from which a graph is captured, before it is sent") {
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    GpuCompressed sums(comm.shared_from_this(), emulated_gpu());
    const OnGpu mine(values_of(comm.rank(), 1000));
    const auto capture = [&](int is_captured) {
      gradring_emulated_capture(0, mine.place().streams[0], is_captured);
    };
    capture(1);
    CHECK_THROWS_AS(sums.submit(mine.call(kCodecs[0]), mine.place(), kPlenty), InvalidArgument);
    capture(0);
    sums.submit(mine.call(kCodecs[0]), mine.place(), kPlenty).wait(kPlenty);
  });
  CHECK(std::string(gradring_emulated_fault(0)) == "");
}

TEST_CASE("losing a peer ends compressed sums by name, and leaves vectors and residuals alone") {
  const gradring_emulated_counts before = emulated_counts();
  std::latch submitted(3);
  const auto ends = end_of_ranks({.ranks = 3}, [&](Communicator& comm) {
    GpuCompressed sums(comm.shared_from_this(), emulated_gpu());
    OnGpu first(values_of(comm.rank(), 5003));
    OnGpu second(values_of(comm.rank() + 3, 5003));
    sums.submit(first.call({CodecKind::kInt8, 1}), first.place(), kPlenty).wait(kPlenty);
    if (comm.rank() == 2) return submitted.arrive_and_wait();  // It leaves.
    const Floats untouched = second.contents();
    second.shut();
    GpuCompressedWork two =
        sums.submit(second.call({CodecKind::kInt8, 1}), second.place(), kPlenty);
    submitted.arrive_and_wait();
    second.open();
    Failure failure;
    try {
      two.order(second.stream().handle(), kPlenty);
    } catch (const Error& error) {
      failure = Failure::from(error);
    }
    CHECK(failure.kind == ErrorKind::kPeerLost);
    second.stream().synchronize();
    const Time deadline = Clock::now() + kPlenty;
    while (!two.is_over() && Clock::now() < deadline) std::this_thread::yield();
    CHECK(two.is_over());
    CHECK(two.is_done());
    CHECK(is_same(second.contents(), untouched));
    two.wait(kPlenty);
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(ends[rank].text);
    CHECK(ends[rank].kind == ErrorKind::kPeerLost);
    CHECK(ends[rank].rank == 2);
  }
  CHECK(emulated_gpu_comes_to_rest(kPlenty));
  const gradring_emulated_counts after = emulated_counts();
  CHECK(after.device_allocations == before.device_allocations);
  CHECK(after.pinned_allocations == before.pinned_allocations);
  CHECK(after.streams == before.streams);
  CHECK(after.events == before.events);
}

TEST_CASE("a stream that never comes to a compressed sum is named when the time is over") {
  const auto ends = end_of_ranks({.ranks = 2}, [&](Communicator& comm) {
    GpuCompressed sums(comm.shared_from_this(), emulated_gpu());
    OnGpu mine(values_of(comm.rank(), 3000));
    mine.shut();
    GpuCompressedWork work =
        sums.submit(mine.call({CodecKind::kTopK, 0.5}), mine.place(), Millis{300});
    try {
      work.wait(kPlenty);
    } catch (...) {
      mine.open();
      while (!work.is_over()) std::this_thread::yield();
      throw;
    }
  });
  for (const Failure& end : ends) {
    CAPTURE(end.text);
    CHECK(end.kind == ErrorKind::kTimedOut);
  }
}

TEST_CASE("what a device refuses to a compressed sum is told to every rank") {
  static const gradring_codec_kernels refusing = [] {
    gradring_codec_kernels codecs = *emulated_gpu().codecs;
    codecs.requantise = [](int, const gradring_requantise*, gradring_stream) -> int {
      return GRADRING_GPU_BAD_CALL;
    };
    return codecs;
  }();
  gradring_gpu_api api = emulated_gpu();
  const auto ends = end_of_ranks({.ranks = 2}, [&](Communicator& comm) {
    gradring_gpu_api own = api;
    if (comm.rank() == 1) own.codecs = &refusing;
    OnGpu mine(values_of(comm.rank(), 700));
    const Floats untouched = mine.contents();
    GpuCompressed sums(comm.shared_from_this(), own);
    GpuCompressedWork work = sums.submit(mine.call({CodecKind::kInt8, 1}), mine.place(), kPlenty);
    try {
      work.wait(kPlenty);
    } catch (...) {
      while (!work.is_over()) std::this_thread::yield();
      CHECK(is_same(mine.contents(), untouched));
      throw;
    }
  });
  for (const Failure& end : ends) {
    CAPTURE(end.text);
    CHECK(end.text.find("could not encode what is to be reduced") != std::string::npos);
  }
}

}  // namespace
}  // namespace gradring::testing::gpu_compressed_test
