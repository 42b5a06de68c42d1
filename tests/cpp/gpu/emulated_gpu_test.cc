// The emulated GPU itself: what goes right must work as on a device, and what would go wrong there
// must be found.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "emulator/runtime.h"

namespace gradring::testing::emulated_gpu_test {

namespace {

const gradring_gpu_runtime& gpu() {
  return *gradring_gpu_get_api()->runtime;
}

std::string forget_fault() {
  return gradring_emulated_fault(1);
}

// Device memory, pinned memory and a stream, given back in the end.
struct Bench {
  static constexpr std::size_t kBytes = 4096;
  void* device = nullptr;
  void* pinned = nullptr;
  gradring_stream stream = nullptr;

  Bench() {
    REQUIRE(gpu().alloc(0, kBytes, &device) == 0);
    REQUIRE(gpu().pinned_alloc(kBytes, &pinned) == 0);
    REQUIRE(gpu().stream_create(0, 1, &stream) == 0);
  }
  ~Bench() {
    gpu().stream_synchronize(0, stream);
    gpu().stream_destroy(0, stream);
    gpu().free(0, device);
    gpu().pinned_free(pinned);
  }
};

TEST_CASE("bytes come back from an emulated device as they went there") {
  Bench bench;
  std::vector<unsigned char> sent(Bench::kBytes);
  std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(3));
  std::memcpy(bench.pinned, sent.data(), sent.size());
  REQUIRE(gpu().copy(0, bench.device, bench.pinned, Bench::kBytes, bench.stream) == 0);
  REQUIRE(gpu().stream_synchronize(0, bench.stream) == 0);
  std::memset(bench.pinned, 0, Bench::kBytes);
  REQUIRE(gpu().copy(0, bench.pinned, bench.device, Bench::kBytes, bench.stream) == 0);
  REQUIRE(gpu().stream_synchronize(0, bench.stream) == 0);
  CHECK(std::memcmp(bench.pinned, sent.data(), sent.size()) == 0);
}

TEST_CASE("pointers of an emulated device say what they are") {
  Bench bench;
  int kind = -1;
  int device = -2;
  gpu().pointer_facts(static_cast<char*>(bench.device) + 100, &kind, &device);
  CHECK(kind == GRADRING_MEMORY_DEVICE);
  CHECK(device == 0);
  gpu().pointer_facts(bench.pinned, &kind, &device);
  CHECK(kind == GRADRING_MEMORY_PINNED);
  gpu().pointer_facts(&bench, &kind, &device);
  CHECK(kind == GRADRING_MEMORY_HOST);
}

TEST_CASE("a stream waits for another one's event, and for a word in memory") {
  Bench one;
  Bench other;
  auto* const words = static_cast<std::uint32_t*>(one.pinned);
  words[0] = 0xFFFFFFFEu;
  words[1] = 0;
  gradring_event event = nullptr;
  REQUIRE(gpu().event_create(0, 0, &event) == 0);
  CHECK(gpu().event_query(event) == 0);  // Never recorded.
  REQUIRE(gpu().stream_wait_value(0, one.stream, &words[0], 1) == 0);
  REQUIRE(gpu().fill(0, one.device, 7, Bench::kBytes, one.stream) == 0);
  REQUIRE(gpu().event_record(0, event, one.stream) == 0);
  REQUIRE(gpu().stream_wait_event(0, other.stream, event) == 0);
  REQUIRE(gpu().copy(0, other.pinned, one.device, Bench::kBytes, other.stream) == 0);
  REQUIRE(gpu().stream_write_value(0, other.stream, &words[1], 5) == 0);
  CHECK(gpu().event_query(event) == GRADRING_GPU_NOT_READY);
  CHECK(gpu().stream_query(0, other.stream) == GRADRING_GPU_NOT_READY);
  // It has wrapped: 1 comes after 0xFFFFFFFE.
  std::atomic_ref<std::uint32_t>(words[0]).store(2, std::memory_order_release);
  REQUIRE(gpu().stream_synchronize(0, other.stream) == 0);
  CHECK(gpu().event_query(event) == 0);
  CHECK(words[1] == 5);
  CHECK(static_cast<unsigned char*>(other.pinned)[Bench::kBytes - 1] == 7);
  CHECK(gpu().event_destroy(0, event) == 0);
}

TEST_CASE("timed events tell the time between them, others do not") {
  Bench bench;
  gradring_event events[3] = {};
  for (int i = 0; i < 3; ++i) REQUIRE(gpu().event_create(0, i < 2 ? 1 : 0, &events[i]) == 0);
  for (gradring_event event : events) REQUIRE(gpu().event_record(0, event, bench.stream) == 0);
  REQUIRE(gpu().event_synchronize(events[2]) == 0);
  float ms = -1;
  CHECK(gpu().event_elapsed_ms(events[0], events[1], &ms) == 0);
  CHECK(ms >= 0);
  CHECK(gpu().event_elapsed_ms(events[0], events[2], &ms) > 0);
  for (gradring_event event : events) gpu().event_destroy(0, event);
}

TEST_CASE("an emulated device finds memory that is short, unpinned, or freed too early") {
  Bench bench;
  std::vector<char> pageable(Bench::kBytes);
  CHECK(gpu().copy(0, bench.device, pageable.data(), Bench::kBytes, bench.stream) > 0);
  CHECK(forget_fault().find("neither device memory nor pinned") != std::string::npos);
  CHECK(gpu().copy(0, bench.device, bench.pinned, Bench::kBytes + 1, bench.stream) > 0);
  CHECK(forget_fault().find("of device memory of 4096 bytes") == std::string::npos);

  auto* const word = static_cast<std::uint32_t*>(bench.pinned);
  *word = 0;
  void* short_lived = nullptr;
  REQUIRE(gpu().alloc(0, 64, &short_lived) == 0);
  REQUIRE(gpu().stream_wait_value(0, bench.stream, word, 1) == 0);
  REQUIRE(gpu().fill(0, short_lived, 1, 64, bench.stream) == 0);
  REQUIRE(gpu().free(0, short_lived) == 0);
  std::atomic_ref<std::uint32_t>(*word).store(1, std::memory_order_release);
  CHECK(gpu().stream_synchronize(0, bench.stream) > 0);
  CHECK(gpu().fill(0, bench.device, 1, 64, bench.stream) > 0);  // As after a fault of a device.
  CHECK(forget_fault().find("has been freed") != std::string::npos);
  CHECK(gpu().fill(0, bench.device, 1, 64, bench.stream) == 0);
}

TEST_CASE("an emulated device refuses handles and devices that are not there") {
  Bench bench;
  gradring_stream stream = nullptr;
  CHECK(gpu().stream_create(99, 0, &stream) > 0);
  CHECK(gpu().fill(1, bench.device, 0, 1, bench.stream) > 0);  // Another device's stream.
  CHECK(gpu().free(1, bench.device) > 0);
  CHECK(gpu().event_query(&bench) > 0);
  CHECK(gpu().stream_wait_value(0, bench.stream, static_cast<std::uint32_t*>(bench.device), 1) !=
        0);
}

TEST_CASE("a test can have a call fail, once") {
  Bench bench;
  gradring_emulated_fail("fill", 1);
  CHECK(gpu().fill(0, bench.device, 0, 1, bench.stream) == 0);
  const int code = gpu().fill(0, bench.device, 0, 1, bench.stream);
  CHECK(std::string(gradring_gpu_get_api()->error_text(code)) ==
        "a failure that the test asked for");
  CHECK(gpu().fill(0, bench.device, 0, 1, bench.stream) == 0);
}

TEST_CASE("all that was taken from an emulated device and given back is accounted for") {
  gradring_emulated_counts before;
  gradring_emulated_count(&before);
  {
    Bench bench;
  }
  gradring_emulated_counts after;
  gradring_emulated_count(&after);
  CHECK(after.device_allocations == before.device_allocations);
  CHECK(after.pinned_allocations == before.pinned_allocations);
  CHECK(after.streams == before.streams);
  CHECK(after.pending == 0);
}

}  // namespace

}  // namespace gradring::testing::emulated_gpu_test
