#include "fake_nccl/streams.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace fake {

void Stream::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  ++pushed_;
  changed_.notify_all();
}

std::uint64_t Stream::pushed() {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool Stream::has_done(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

void Stream::wait_for(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_closing_ || !work_.empty(); });
    if (work_.empty()) return;
    const auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Stream& stream_of(void* handle) {
  static auto* const usual = new Stream;  // Its thread may run while the process ends.
  return reinterpret_cast<std::uintptr_t>(handle) <= 1 ? *usual : *static_cast<Stream*>(handle);
}

namespace {

constexpr int kInvalidValue = 1;
thread_local int own_device_in_use = -1;

// The emulated GPU, if that is the plugin.
struct Emulated {
  int (*enqueue)(int device, void* stream, void (*body)(void*), void* data) = nullptr;
  int (*device_in_use)() = nullptr;
};

const Emulated& emulated() {
  static const Emulated found = [] {
    Emulated gpu;
    const char* const plugin = std::getenv("GRADRING_GPU_PLUGIN");
    void* const library = plugin == nullptr ? nullptr : ::dlopen(plugin, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return gpu;
    gpu.enqueue =
        reinterpret_cast<decltype(gpu.enqueue)>(::dlsym(library, "gradring_emulated_enqueue"));
    gpu.device_in_use = reinterpret_cast<decltype(gpu.device_in_use)>(
        ::dlsym(library, "gradring_emulated_device_in_use"));
    return gpu;
  }();
  return found;
}

struct Event {
  Stream* stream = nullptr;  // None: never recorded, which counts as reached.
  std::uint64_t ticket = 0;
};

Event& event_of(gradring_event event) {
  return *static_cast<Event*>(event);
}

int device_count(int* count) {
  *count = 1;
  return 0;
}
int driver_version(int* version) {
  *version = 13000;
  return 0;
}
int use_device(int device) {
  if (device != 0) return kInvalidValue;
  own_device_in_use = device;
  return 0;
}
int device_facts(int, gradring_device_facts* facts) {
  *facts = {};
  std::strcpy(facts->name, "fake");
  return 0;
}
int stream_create(int, int, gradring_stream* stream) {
  *stream = new Stream;
  return 0;
}
int stream_destroy(int, gradring_stream stream) {
  static_cast<Stream*>(stream)->close();
  return 0;
}
int stream_synchronize(int, gradring_stream stream) {
  Stream& queue = stream_of(stream);
  queue.wait_for(queue.pushed());
  return 0;
}
int event_create(int, int, gradring_event* event) {
  *event = new Event;
  return 0;
}
int event_destroy(int, gradring_event event) {
  delete static_cast<Event*>(event);
  return 0;
}
int event_record(int, gradring_event event, gradring_stream stream) {
  Stream& queue = stream_of(stream);
  event_of(event) = {&queue, queue.pushed()};
  return 0;
}
int event_query(gradring_event event) {
  const Event& asked = event_of(event);
  if (asked.stream == nullptr || asked.stream->has_done(asked.ticket)) return 0;
  return GRADRING_GPU_NOT_READY;
}
int stream_wait_event(int, gradring_stream stream, gradring_event event) {
  const Event asked = event_of(event);
  if (asked.stream == nullptr || asked.stream == &stream_of(stream)) return 0;
  stream_of(stream).push([asked] { asked.stream->wait_for(asked.ticket); });
  return 0;
}

int stream_is_capturing(int, gradring_stream, int* is_capturing) {
  *is_capturing = 0;
  return 0;
}

const char* error_text(int code) {
  return code == kInvalidValue ? "invalid value" : "unknown";
}

}  // namespace

int device_in_use() {
  return emulated().device_in_use != nullptr ? emulated().device_in_use() : own_device_in_use;
}

void push(int device, void* stream, std::function<void()> work) {
  if (emulated().enqueue == nullptr) return stream_of(stream).push(std::move(work));
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(data));
    (*body)();
  };
  auto body = std::make_unique<std::function<void()>>(std::move(work));
  if (emulated().enqueue(device, stream, run, body.get()) != 0) std::abort();
  static_cast<void>(body.release());
}

}  // namespace fake

extern "C" __attribute__((visibility("default"))) const gradring_gpu_api* gradring_gpu_get_api() {
  static gradring_gpu_runtime runtime = {};
  runtime.device_count = &fake::device_count;
  runtime.driver_version = &fake::driver_version;
  runtime.device_facts = &fake::device_facts;
  runtime.use_device = &fake::use_device;
  runtime.stream_create = &fake::stream_create;
  runtime.stream_destroy = &fake::stream_destroy;
  runtime.stream_synchronize = &fake::stream_synchronize;
  runtime.event_create = &fake::event_create;
  runtime.event_destroy = &fake::event_destroy;
  runtime.event_record = &fake::event_record;
  runtime.event_query = &fake::event_query;
  runtime.stream_wait_event = &fake::stream_wait_event;
  runtime.stream_is_capturing = &fake::stream_is_capturing;
  static gradring_gpu_api api = {};
  api.abi = GRADRING_GPU_ABI;
  api.bytes = sizeof(api);
  api.build = "the fake NCCL's own";
  api.error_text = &fake::error_text;
  api.runtime = &runtime;
  return &api;
}
