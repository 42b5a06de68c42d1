#include "emulator/device.h"

#include <cstdio>
#include <cstdlib>

namespace gradring::emulated {
namespace {

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Settings from_environment() {
  Settings settings;
  settings.devices = static_cast<int>(number("GRADRING_EMULATED_DEVICES", 2));
  settings.seed = number("GRADRING_EMULATED_SEED", 1);
  settings.longest_delay = std::chrono::microseconds{number("GRADRING_EMULATED_DELAY_US", 20)};
  settings.memory_bytes = number("GRADRING_EMULATED_MEMORY_BYTES", settings.memory_bytes);
  settings.can_wait_on_memory = number("GRADRING_EMULATED_NO_MEMORY_WAITS", 0) == 0;
  return settings;
}

}  // namespace

Machine& machine() {
  static auto* const all = new Machine;
  return *all;
}

Machine::Machine() : settings(from_environment()) {}

int Machine::check(const char* entry, int device) {
  if (device < 0 || device >= settings.devices) return kInvalidDevice;
  const std::lock_guard lock(mutex_);
  if (!fault_.empty()) return kIllegalAddress;
  const auto failing = failing_.find(entry);
  if (failing == failing_.end() || failing->second-- > 0) return GRADRING_GPU_OK;
  failing_.erase(failing);
  return kAsked;
}

int Machine::fault(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (fault_.empty()) {
    fault_ = what;
    std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  }
  return kIllegalAddress;
}

const char* Machine::first_fault(bool forget) {
  const std::lock_guard lock(mutex_);
  const char* const text = told_.insert(fault_).first->c_str();
  if (forget) fault_.clear();
  return text;
}

void Machine::fail(const char* entry, int calls) {
  const std::lock_guard lock(mutex_);
  failing_[entry] = calls;
}

std::shared_ptr<Queue> Machine::make_queue(int device) {
  return std::make_shared<Queue>(device, settings.seed * 1000003u + ++queues_made_,
                                 settings.longest_delay);
}

gradring_stream Machine::create_stream(int device) {
  const std::lock_guard lock(mutex_);
  auto queue = make_queue(device);
  void* const handle = queue.get();
  streams_[handle] = std::move(queue);
  return handle;
}

bool Machine::destroy_stream(int device, gradring_stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || found->second->device() != device) return false;
  found->second->close();
  streams_.erase(found);
  return true;
}

std::shared_ptr<Queue> Machine::find(int device, gradring_stream stream) {
  constexpr std::uintptr_t kLargestDefault = 2;
  const auto handle = reinterpret_cast<std::uintptr_t>(stream);
  const std::lock_guard lock(mutex_);
  if (handle <= kLargestDefault) {
    auto& queue = default_streams_[{device, handle == kLargestDefault ? 2 : 1}];
    if (!queue) queue = make_queue(device);
    return queue;
  }
  const auto found = streams_.find(stream);
  if (found == streams_.end() || found->second->device() != device) return nullptr;
  return found->second;
}

gradring_event Machine::create_event(int device, bool is_timed) {
  const std::lock_guard lock(mutex_);
  auto event = std::make_shared<Event>(device, is_timed);
  void* const handle = event.get();
  events_[handle] = std::move(event);
  return handle;
}

bool Machine::destroy_event(gradring_event event) {
  const std::lock_guard lock(mutex_);
  return events_.erase(event) == 1;
}

std::shared_ptr<Event> Machine::find(gradring_event event) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  return found == events_.end() ? nullptr : found->second;
}

std::size_t Machine::streams() {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}

std::size_t Machine::events() {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace gradring::emulated
