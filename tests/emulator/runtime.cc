#include "emulator/runtime.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include "emulator/device.h"
#include "emulator/ranges.h"

namespace gradring::emulated {
namespace {

int device_count(int* count) {
  *count = machine().settings.devices;
  return GRADRING_GPU_OK;
}

int driver_version(int* version) {
  *version = 13000;
  return GRADRING_GPU_OK;
}

int device_facts(int device, gradring_device_facts* facts) {
  if (const int code = machine().check("device_facts", device)) return code;
  *facts = {};
  std::snprintf(facts->name, sizeof facts->name, "Emulated GPU %d", device);
  std::snprintf(facts->bus_id, sizeof facts->bus_id, "00000000:%02X:00.0", device + 1);
  facts->major = 9;
  facts->multiprocessors = 4;
  facts->can_wait_on_memory = machine().settings.can_wait_on_memory ? 1 : 0;
  facts->memory_bytes = machine().settings.memory_bytes;
  facts->l2_bytes = std::uint64_t{1} << 20;
  return GRADRING_GPU_OK;
}

int pointer_facts(const void* pointer, int* kind, int* device) {
  const auto range = ranges().find(pointer);
  *kind = range ? range->kind : static_cast<int>(GRADRING_MEMORY_HOST);
  *device = range ? range->device : -1;
  return GRADRING_GPU_OK;
}

int alloc(int device, std::size_t bytes, void** pointer) {
  *pointer = nullptr;
  if (const int code = machine().check("alloc", device)) return code;
  if (bytes == 0) return GRADRING_GPU_OK;
  if (ranges().bytes_on(device) + bytes > machine().settings.memory_bytes) return kOutOfMemory;
  *pointer = ranges().allocate(GRADRING_MEMORY_DEVICE, device, bytes);
  return *pointer == nullptr ? static_cast<int>(kOutOfMemory) : GRADRING_GPU_OK;
}

int release(int device, void* pointer) {
  if (pointer == nullptr) return GRADRING_GPU_OK;
  const auto range = ranges().find(pointer);
  if (!range || range->device != device ||
      !ranges().release(pointer, GRADRING_MEMORY_DEVICE, false))
    return kInvalidValue;
  return GRADRING_GPU_OK;
}

int pinned_alloc(std::size_t bytes, void** pointer) {
  *pointer = nullptr;
  if (const int code = machine().check("pinned_alloc", 0)) return code;
  *pointer = ranges().allocate(GRADRING_MEMORY_PINNED, -1, bytes);
  return *pointer == nullptr ? static_cast<int>(kOutOfMemory) : GRADRING_GPU_OK;
}

int pinned_free(void* pointer) {
  if (pointer == nullptr) return GRADRING_GPU_OK;
  return ranges().release(pointer, GRADRING_MEMORY_PINNED, false)
             ? static_cast<int>(GRADRING_GPU_OK)
             : kInvalidValue;
}

int pin(void* pointer, std::size_t bytes) {
  if (const int code = machine().check("pin", 0)) return code;
  if (pointer == nullptr || bytes == 0) return kInvalidValue;
  return ranges().add_registered(pointer, bytes) ? static_cast<int>(GRADRING_GPU_OK)
                                                 : kAlreadyPinned;
}

int unpin(void* pointer) {
  return ranges().release(pointer, GRADRING_MEMORY_PINNED, true) ? static_cast<int>(GRADRING_GPU_OK)
                                                                 : kNotPinned;
}

int stream_create(int device, int, gradring_stream* stream) {
  *stream = nullptr;
  if (const int code = machine().check("stream_create", device)) return code;
  *stream = machine().create_stream(device);
  return GRADRING_GPU_OK;
}

int stream_destroy(int device, gradring_stream stream) {
  return machine().destroy_stream(device, stream) ? static_cast<int>(GRADRING_GPU_OK)
                                                  : kInvalidHandle;
}

int stream_query(int device, gradring_stream stream) {
  if (const int code = machine().check("stream_query", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  return queue->is_idle() ? GRADRING_GPU_OK : GRADRING_GPU_NOT_READY;
}

int stream_synchronize(int device, gradring_stream stream) {
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  queue->wait_until_idle();
  return machine().check("stream_synchronize", device);
}

int event_create(int device, int is_timed, gradring_event* event) {
  *event = nullptr;
  if (const int code = machine().check("event_create", device)) return code;
  *event = machine().create_event(device, is_timed != 0);
  return GRADRING_GPU_OK;
}

int event_destroy(int, gradring_event event) {
  return machine().destroy_event(event) ? static_cast<int>(GRADRING_GPU_OK) : kInvalidHandle;
}

// A capture takes what is put into its stream for its own, and a stream that is full for good holds
// its caller up for good.
int put(Queue& queue, std::function<void()> body) {
  if (queue.push(std::move(body))) return GRADRING_GPU_OK;
  return machine().fault(queue.is_captured() ? "put into a stream that a graph is captured from"
                                             : "a stream is full, and nobody has it go on");
}

int event_record(int device, gradring_event handle, gradring_stream stream) {
  if (const int code = machine().check("event_record", device)) return code;
  const auto event = machine().find(handle);
  const auto queue = machine().find(device, stream);
  if (!event || !queue || event->device != device) return kInvalidHandle;
  auto marker = std::make_shared<Marker>();
  {
    const std::lock_guard lock(event->mutex);
    event->recorded = marker;
  }
  return put(*queue, [marker] { marker->pass(); });
}

int event_query(gradring_event handle) {
  const auto event = machine().find(handle);
  if (!event) return kInvalidHandle;
  if (const int code = machine().check("event_query", event->device)) return code;
  const auto marker = event->marker();
  return !marker || marker->is_passed() ? GRADRING_GPU_OK : GRADRING_GPU_NOT_READY;
}

int event_synchronize(gradring_event handle) {
  const auto event = machine().find(handle);
  if (!event) return kInvalidHandle;
  if (const auto marker = event->marker()) marker->wait();
  return machine().check("event_synchronize", event->device);
}

int event_elapsed_ms(gradring_event from, gradring_event to, float* ms) {
  const auto first = machine().find(from);
  const auto last = machine().find(to);
  if (!first || !last || !first->is_timed || !last->is_timed) return kInvalidHandle;
  const auto begin = first->marker();
  const auto end = last->marker();
  if (!begin || !end) return kInvalidHandle;
  if (!begin->is_passed() || !end->is_passed()) return GRADRING_GPU_NOT_READY;
  *ms = static_cast<float>(seconds_between(begin->time(), end->time()) * 1e3);
  return GRADRING_GPU_OK;
}

int stream_wait_event(int device, gradring_stream stream, gradring_event handle) {
  if (const int code = machine().check("stream_wait_event", device)) return code;
  const auto event = machine().find(handle);
  const auto queue = machine().find(device, stream);
  if (!event || !queue) return kInvalidHandle;
  const auto marker = event->marker();
  return marker ? put(*queue, [marker] { marker->wait(); }) : GRADRING_GPU_OK;
}

bool is_word(const std::uint32_t* word) {
  const auto range = ranges().find(word);
  return reinterpret_cast<std::uintptr_t>(word) % sizeof *word == 0 && range &&
         range->kind == GRADRING_MEMORY_PINNED &&
         ranges().complaint(word, sizeof *word, "a word").empty();
}

void await_value(const std::uint32_t* word, std::uint32_t value) {
  constexpr std::chrono::microseconds kPause{20};
  while (true) {
    if (!is_word(word)) {
      machine().fault("stream_wait_value: the word was freed while a stream waited for it");
      return;
    }
    const std::atomic_ref<std::uint32_t> shared(*const_cast<std::uint32_t*>(word));
    if (static_cast<std::int32_t>(shared.load(std::memory_order_acquire) - value) >= 0) return;
    std::this_thread::sleep_for(kPause);
  }
}

int stream_wait_value(int device, gradring_stream stream, std::uint32_t* word,
                      std::uint32_t value) {
  if (const int code = machine().check("stream_wait_value", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  if (!machine().settings.can_wait_on_memory || !is_word(word)) return GRADRING_GPU_BAD_CALL;
  return put(*queue, [word, value] { await_value(word, value); });
}

int stream_write_value(int device, gradring_stream stream, std::uint32_t* word,
                       std::uint32_t value) {
  if (const int code = machine().check("stream_write_value", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  if (!machine().settings.can_wait_on_memory || !is_word(word)) return GRADRING_GPU_BAD_CALL;
  return put(*queue, [word, value] {
    if (is_word(word))
      std::atomic_ref<std::uint32_t>(*word).store(value, std::memory_order_release);
    else
      machine().fault("stream_write_value: the word was freed before its turn came");
  });
}

// Now, or when its turn has come: true where the memory is fit to be used.
bool is_fit(const void* pointer, std::size_t bytes, const char* what) {
  const std::string complaint = ranges().complaint(pointer, bytes, what);
  if (!complaint.empty()) machine().fault(complaint);
  return complaint.empty();
}

int copy(int device, void* to, const void* from, std::size_t bytes, gradring_stream stream) {
  if (const int code = machine().check("copy", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  if (!is_fit(from, bytes, "copy from") || !is_fit(to, bytes, "copy to")) return kIllegalAddress;
  return put(*queue, [=] {
    if (!is_fit(from, bytes, "copy from, when its turn came") ||
        !is_fit(to, bytes, "copy to, when its turn came"))
      return;
    std::memmove(to, from, bytes);
    machine().note_copied(bytes);
  });
}

int fill(int device, void* to, int value, std::size_t bytes, gradring_stream stream) {
  if (const int code = machine().check("fill", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  if (!is_fit(to, bytes, "fill")) return kIllegalAddress;
  return put(*queue, [=] {
    if (is_fit(to, bytes, "fill, when its turn came")) std::memset(to, value, bytes);
  });
}

thread_local int in_use = -1;  // Nothing here goes by it; what stands for NCCL does.

int use_device(int device) {
  const int code = machine().check("use_device", device);
  if (code == GRADRING_GPU_OK) in_use = device;
  return code;
}

int stream_is_capturing(int device, gradring_stream stream, int* is_capturing) {
  *is_capturing = 0;
  if (const int code = machine().check("stream_is_capturing", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  *is_capturing = queue->is_captured() ? 1 : 0;
  return GRADRING_GPU_OK;
}

}  // namespace

const gradring_gpu_runtime kRuntime = {
    .device_count = device_count,
    .driver_version = driver_version,
    .device_facts = device_facts,
    .pointer_facts = pointer_facts,
    .alloc = alloc,
    .free = release,
    .pinned_alloc = pinned_alloc,
    .pinned_free = pinned_free,
    .pin = pin,
    .unpin = unpin,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_query = stream_query,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed_ms = event_elapsed_ms,
    .stream_wait_event = stream_wait_event,
    .stream_wait_value = stream_wait_value,
    .stream_write_value = stream_write_value,
    .copy = copy,
    .fill = fill,
    .use_device = use_device,
    .stream_is_capturing = stream_is_capturing,
};

const char* error_text(int code) {
  switch (code) {
    case GRADRING_GPU_OK: return "no error";
    case GRADRING_GPU_NOT_READY: return "not ready";
    case GRADRING_GPU_BAD_CALL: return "an argument that cannot be";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kInvalidDevice: return "invalid device ordinal";
    case kInvalidHandle: return "invalid resource handle";
    case kIllegalAddress: return machine().first_fault(false);
    case kAlreadyPinned: return "part or all of the memory is pinned already";
    case kNotPinned: return "the memory is not pinned";
    case kAsked: return "a failure that the test asked for";
    default: return "unknown error";
  }
}

int enqueue(int device, gradring_stream stream, std::function<void()> body) {
  if (const int code = machine().check("launch", device)) return code;
  const auto queue = machine().find(device, stream);
  if (!queue) return kInvalidHandle;
  return put(*queue, [body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      machine().fault(error.what());
    }
  });
}

int device_in_use() {
  return in_use;
}

void check_reachable(const void* pointer, std::size_t bytes) {
  const std::string complaint = ranges().complaint(pointer, bytes, "a kernel");
  if (!complaint.empty()) throw std::out_of_range(complaint);
}

}  // namespace gradring::emulated
