// The entries of the CUDA plugin's runtime, over a fake CUDA: whatever thread calls them, they open
// no device that the process does not use, and leave threads and captured graphs as they were.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/tables.h"
#include "fake_cuda/driver.h"

namespace gradring::testing::entries_test {
namespace {

using Entry = std::pair<std::string, std::function<int(int device)>>;

const gradring_gpu_runtime& runtime() {
  return cuda::kRuntime;
}

void* memory() {
  static std::uint32_t word = 0;
  return &word;
}

// All that do something on a device, or with what is of one.
std::vector<Entry> entries() {
  const auto& all = runtime();
  auto* const word = static_cast<std::uint32_t*>(memory());
  static void* made = nullptr;
  static int number = 0;
  static float ms = 0;
  return {
      {"pointer_facts", [&](int) { return all.pointer_facts(memory(), &number, &number); }},
      {"alloc", [&](int device) { return all.alloc(device, 1, &made); }},
      {"free", [&](int device) { return all.free(device, nullptr); }},
      {"pinned_alloc", [&](int) { return all.pinned_alloc(1, &made); }},
      {"pinned_free", [&](int) { return all.pinned_free(nullptr); }},
      {"pin", [&](int) { return all.pin(memory(), 1); }},
      {"unpin", [&](int) { return all.unpin(memory()); }},
      {"stream_create", [&](int device) { return all.stream_create(device, 1, &made); }},
      {"stream_destroy", [&](int device) { return all.stream_destroy(device, nullptr); }},
      {"stream_query", [&](int device) { return all.stream_query(device, nullptr); }},
      {"stream_synchronize", [&](int device) { return all.stream_synchronize(device, nullptr); }},
      {"event_create", [&](int device) { return all.event_create(device, 0, &made); }},
      {"event_destroy", [&](int device) { return all.event_destroy(device, nullptr); }},
      {"event_record", [&](int device) { return all.event_record(device, nullptr, nullptr); }},
      {"event_query",
       [&](int) {
         const int code = all.event_query(nullptr);
         return code == GRADRING_GPU_NOT_READY ? 0 : code;
       }},
      {"event_synchronize", [&](int) { return all.event_synchronize(nullptr); }},
      {"event_elapsed_ms", [&](int) { return all.event_elapsed_ms(nullptr, nullptr, &ms); }},
      {"stream_wait_event",
       [&](int device) { return all.stream_wait_event(device, nullptr, nullptr); }},
      {"stream_wait_value",
       [&, word](int device) { return all.stream_wait_value(device, nullptr, word, 0); }},
      {"stream_write_value",
       [&, word](int device) { return all.stream_write_value(device, nullptr, word, 0); }},
      {"copy", [&](int device) { return all.copy(device, memory(), memory(), 1, nullptr); }},
      {"fill", [&](int device) { return all.fill(device, memory(), 0, 1, nullptr); }},
      {"stream_is_capturing",
       [&](int device) { return all.stream_is_capturing(device, nullptr, &number); }},
  };
}

void on_a_thread(const std::function<void()>& act) {
  std::thread(act).join();
}

// So that this process uses `device`, and no other.
void start_with(int device) {
  on_a_thread([=] {
    cudaSetDevice(device);
    void* made = nullptr;
    CHECK(runtime().alloc(device, 1, &made) == 0);
  });
  fake_cuda::reset();
}

TEST_CASE("a thread without a device opens none but the process's, and has none afterwards") {
  for (const auto& [name, call] : entries()) {
    CAPTURE(name);
    start_with(3);
    on_a_thread([&call = call] {
      CHECK(call(3) == 0);
      CHECK(fake_cuda::device_of_thread() == fake_cuda::kNone);
    });
    CHECK(fake_cuda::opened() == std::set<int>{3});
  }
}

TEST_CASE("a thread keeps its own device") {
  for (const auto& [name, call] : entries()) {
    CAPTURE(name);
    start_with(1);
    on_a_thread([&call = call] {
      cudaSetDevice(2);
      CHECK(call(1) == 0);
      CHECK(fake_cuda::device_of_thread() == 2);
    });
    CHECK(!fake_cuda::opened().contains(0));
  }
}

TEST_CASE("a graph that some thread captures is not spoiled, and spoils no call") {
  int stream = 0;
  for (const auto& [name, call] : entries()) {
    CAPTURE(name);
    start_with(1);
    fake_cuda::capture(reinterpret_cast<cudaStream_t>(&stream));
    on_a_thread([&call = call] {
      CHECK(call(1) == 0);
      CHECK(fake_cuda::mode_of_thread() == cudaStreamCaptureModeGlobal);
    });
    CHECK(!fake_cuda::is_spoiled());
  }
  fake_cuda::reset();
}

TEST_CASE("a stream is captured where it is itself, and where its work would be in the way") {
  int one = 0;
  int other = 0;
  const auto is_capturing = [](void* stream) {
    int found = -1;
    CHECK(runtime().stream_is_capturing(0, stream, &found) == 0);
    return found;
  };
  CHECK(is_capturing(&one) == 0);
  CHECK(is_capturing(nullptr) == 0);
  fake_cuda::capture(reinterpret_cast<cudaStream_t>(&one));
  CHECK(is_capturing(&one) == 1);
  CHECK(is_capturing(&other) == 0);
  CHECK(is_capturing(nullptr) == 1);
  fake_cuda::reset();
}

}  // namespace
}  // namespace gradring::testing::entries_test
