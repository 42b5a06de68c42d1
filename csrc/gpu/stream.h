// Streams and events of a device. A StreamView is somebody else's stream, a Stream one of ours.
// What is put into a stream is done later, in order. Callable from any thread; an Event is recorded
// by one thread at a time. Everything throws DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/device.h"

namespace gradring::gpu {

class StreamView;

// A stream as Python's libraries hand it on: its address as a number.
inline gradring_stream stream_of(std::uintptr_t handle) {
  return reinterpret_cast<gradring_stream>(handle);
}

// A place in a stream. Never recorded: passed.
class Event {
 public:
  explicit Event(const Device& device, bool is_timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamView stream);
  bool is_passed() const;
  // Waits on this thread, without a deadline.
  void synchronize() const;
  gradring_event handle() const { return event_; }

 private:
  const Device& device_;
  gradring_event event_ = nullptr;
};

class StreamView {
 public:
  StreamView(const Device& device, gradring_stream stream) : device_(&device), stream_(stream) {}

  const Device& device() const { return *device_; }
  gradring_stream handle() const { return stream_; }

  void wait(const Event& event) const;
  // Until *word (pinned) has come to `value`, as numbers that wrap. Only where the device
  // can_wait_on_memory().
  void wait_for(std::uint32_t* word, std::uint32_t value) const;
  void write(std::uint32_t* word, std::uint32_t value) const;
  // Host memory must be pinned.
  void copy(void* to, const void* from, std::size_t bytes) const;
  void fill(void* to, int value, std::size_t bytes) const;
  bool is_idle() const;
  void synchronize() const;
  // Throws InvalidArgument while a CUDA graph is captured from the stream: calls to other ranks
  // cannot be part of one, and would spoil it.
  void refuse_capture() const;

 protected:
  const Device* device_;
  gradring_stream stream_;
};

// Not ordered with the default stream. What is in it when it is destroyed is still carried out.
class Stream : public StreamView {
 public:
  Stream(const Device& device, bool is_urgent);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

}  // namespace gradring::gpu
