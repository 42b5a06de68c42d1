// Streams and events of a device that is this process's own memory: enough of the GPU plugin's
// runtime for the fake NCCL, which lives in the same library so that its operations can be put into
// the plugin's streams. A stream is a queue with a thread. Where the plugin is the emulated GPU
// (tests/emulator), operations go into its streams instead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "gpu/api.h"

namespace fake {

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}

  // Runs what is left, and no more. The object stays: events may still ask for it.
  void close();
  void push(std::function<void()> work);
  // How much has been pushed so far, and whether so much is done.
  std::uint64_t pushed();
  bool has_done(std::uint64_t ticket);
  void wait_for(std::uint64_t ticket);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool is_closing_ = false;
  std::thread thread_;
};

Stream& stream_of(void* handle);  // 0 and 1: the default stream.

int device_in_use();  // By the calling thread; -1: none.

// Runs `work` in one of the plugin's streams of a device.
void push(int device, void* stream, std::function<void()> work);

}  // namespace fake
