#include "gpu/stream.h"

#include "base/error.h"

namespace gradring::gpu {
namespace {

gradring_stream new_stream(const Device& device, bool is_urgent) {
  gradring_stream stream = nullptr;
  device.check(device.runtime().stream_create(device.index(), is_urgent ? 1 : 0, &stream),
               "make a stream");
  return stream;
}

}  // namespace

Event::Event(const Device& device, bool is_timed) : device_(device) {
  device.check(device.runtime().event_create(device.index(), is_timed ? 1 : 0, &event_),
               "make an event");
}

Event::~Event() {
  device_.runtime().event_destroy(device_.index(), event_);
}

void Event::record(StreamView stream) {
  device_.check(device_.runtime().event_record(device_.index(), event_, stream.handle()),
                "record an event");
}

bool Event::is_passed() const {
  const int code = device_.runtime().event_query(event_);
  if (code == GRADRING_GPU_NOT_READY) return false;
  device_.check(code, "get to an event");
  return true;
}

void Event::synchronize() const {
  device_.check(device_.runtime().event_synchronize(event_), "get to an event");
}

void StreamView::wait(const Event& event) const {
  device_->check(device_->runtime().stream_wait_event(device_->index(), stream_, event.handle()),
                 "have a stream wait for an event");
}

void StreamView::wait_for(std::uint32_t* word, std::uint32_t value) const {
  device_->check(device_->runtime().stream_wait_value(device_->index(), stream_, word, value),
                 "have a stream wait for a word in memory");
}

void StreamView::write(std::uint32_t* word, std::uint32_t value) const {
  device_->check(device_->runtime().stream_write_value(device_->index(), stream_, word, value),
                 "have a stream write a word in memory");
}

void StreamView::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  device_->check(device_->runtime().copy(device_->index(), to, from, bytes, stream_), "copy");
}

void StreamView::fill(void* to, int value, std::size_t bytes) const {
  if (bytes == 0) return;
  device_->check(device_->runtime().fill(device_->index(), to, value, bytes, stream_), "fill");
}

bool StreamView::is_idle() const {
  const int code = device_->runtime().stream_query(device_->index(), stream_);
  if (code == GRADRING_GPU_NOT_READY) return false;
  device_->check(code, "do what is in a stream");
  return true;
}

void StreamView::synchronize() const {
  device_->check(device_->runtime().stream_synchronize(device_->index(), stream_),
                 "do what is in a stream");
}

void StreamView::refuse_capture() const {
  int is_capturing = 0;
  device_->check(device_->runtime().stream_is_capturing(device_->index(), stream_, &is_capturing),
                 "tell whether a stream is captured");
  if (is_capturing != 0)
    throw InvalidArgument(
        str("a CUDA graph is being captured from the stream of this call on GPU ", device_->index(),
            ": what other ranks take part in cannot be captured; call it before or after the "
            "capture, or give stream= one that is not captured"));
}

Stream::Stream(const Device& device, bool is_urgent)
    : StreamView(device, new_stream(device, is_urgent)) {}

Stream::~Stream() {
  device_->runtime().stream_destroy(device_->index(), stream_);
}

}  // namespace gradring::gpu
