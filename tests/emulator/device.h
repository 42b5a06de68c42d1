// What the emulated devices share: their settings, their faults, their default streams, and calls
// that a test wants to fail. Used by the entries of the runtime; callable from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "emulator/queue.h"
#include "gpu/api.h"

namespace gradring::emulated {

// The driver's own numbers, where it has them.
enum Code : int {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kIllegalAddress = 700,
  kAlreadyPinned = 712,
  kNotPinned = 713,
  kAsked = 999,
};

struct Settings {
  int devices = 2;
  std::uint64_t seed = 1;
  std::chrono::microseconds longest_delay{20};
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;
  bool can_wait_on_memory = true;
};

struct Event {
  Event(int on, bool timed) : device(on), is_timed(timed) {}
  const int device;
  const bool is_timed;
  std::mutex mutex;
  std::shared_ptr<Marker> recorded;  // None: never, which counts as passed.

  std::shared_ptr<Marker> marker() {
    const std::lock_guard lock(mutex);
    return recorded;
  }
};

class Machine {
 public:
  Machine();
  const Settings settings;

  // What an entry begins with: a device that is not there, one at fault, a failure a test asked
  // for.
  int check(const char* entry, int device);
  // Something went wrong that no call can return any more, or that a real device would not survive.
  int fault(const std::string& what);
  const char* first_fault(bool forget);
  void fail(const char* entry, int calls);

  gradring_stream create_stream(int device);
  bool destroy_stream(int device, gradring_stream stream);
  // None where there is no such stream of this device.
  std::shared_ptr<Queue> find(int device, gradring_stream stream);
  gradring_event create_event(int device, bool is_timed);
  bool destroy_event(gradring_event event);
  std::shared_ptr<Event> find(gradring_event event);

  std::size_t streams();
  std::size_t events();
  std::uint64_t bytes_copied() const { return bytes_copied_.load(); }
  void note_copied(std::size_t bytes) { bytes_copied_ += bytes; }

 private:
  std::shared_ptr<Queue> make_queue(int device);

  std::mutex mutex_;  // Guards all that follow.
  std::map<void*, std::shared_ptr<Queue>> streams_;
  std::map<std::pair<int, std::uintptr_t>, std::shared_ptr<Queue>> default_streams_;
  std::map<void*, std::shared_ptr<Event>> events_;
  std::map<std::string, int> failing_;
  std::uint64_t queues_made_ = 0;
  std::string fault_;
  std::set<std::string> told_;  // Texts handed out: they stay where they are.
  std::atomic<std::uint64_t> bytes_copied_{0};
};

Machine& machine();  // Never destroyed.

}  // namespace gradring::emulated
