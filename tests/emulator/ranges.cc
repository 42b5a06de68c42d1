#include "emulator/ranges.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace gradring::emulated {
namespace {

constexpr std::size_t kAlignment = 256;  // cudaMalloc's.
constexpr std::size_t kKeptBytes = std::size_t{64} << 20;
constexpr int kFresh = 0xCD;
constexpr int kFreed = 0xDD;

const char* name_of(int kind) {
  return kind == GRADRING_MEMORY_DEVICE ? "device" : kind == GRADRING_MEMORY_PINNED ? "pinned" : "";
}

// At least one byte more: an allocation's end is no other's begin.
std::size_t rounded(std::size_t bytes) {
  return (bytes + kAlignment) / kAlignment * kAlignment;
}

void* pointer_to(const Range& range) {
  return reinterpret_cast<void*>(range.begin);
}

}  // namespace

Ranges& ranges() {
  static auto* const all = new Ranges;
  return *all;
}

void* Ranges::allocate(int kind, int device, std::size_t bytes) {
  void* const memory = std::aligned_alloc(kAlignment, rounded(bytes));
  if (memory == nullptr) return nullptr;
  std::memset(memory, kFresh, rounded(bytes));  // As if somebody had used it before.
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(static_cast<char*>(memory) + bytes, rounded(bytes) - bytes);
#endif
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  living_[begin] = {begin, bytes, kind, device, false};
  return memory;
}

bool Ranges::add_registered(void* pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const auto next = living_.lower_bound(begin);
  if (next != living_.end() && next->first < begin + bytes) return false;
  if (next != living_.begin()) {
    const Range& before = std::prev(next)->second;
    if (before.begin + before.bytes > begin) return false;
  }
  living_[begin] = {begin, bytes, GRADRING_MEMORY_PINNED, -1, true};
  return true;
}

bool Ranges::release(void* pointer, int kind, bool is_registered) {
  const std::lock_guard lock(mutex_);
  const auto found = living_.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == living_.end() || found->second.kind != kind ||
      found->second.is_registered != is_registered)
    return false;
  const Range range = found->second;
  living_.erase(found);
  if (!is_registered) quarantine(range);
  return true;
}

void Ranges::quarantine(const Range& range) {
  std::memset(pointer_to(range), kFreed, range.bytes);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(pointer_to(range), range.bytes);
#endif
  freed_.push_back(range);
  freed_bytes_ += range.bytes;
  while (freed_bytes_ > kKeptBytes) {
    const Range oldest = freed_.front();
    freed_.pop_front();
    freed_bytes_ -= oldest.bytes;
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(pointer_to(oldest), rounded(oldest.bytes));
#endif
    std::free(pointer_to(oldest));
  }
}

std::optional<Range> Ranges::find_locked(std::uintptr_t address) const {
  auto found = living_.upper_bound(address);
  if (found == living_.begin()) return std::nullopt;
  const Range& range = (--found)->second;
  if (address - range.begin > range.bytes) return std::nullopt;  // Its end is its own, too.
  return range;
}

std::optional<Range> Ranges::find(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  return find_locked(reinterpret_cast<std::uintptr_t>(pointer));
}

std::string Ranges::complaint(const void* pointer, std::size_t bytes, const char* what) const {
  if (bytes == 0) return "";
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  std::ostringstream text;
  text << what << ": " << bytes << " bytes at " << pointer;
  if (const auto range = find_locked(address)) {
    const std::size_t offset = address - range->begin;
    if (offset + bytes <= range->bytes) return "";
    text << " begin at byte " << offset << " of " << name_of(range->kind) << " memory of "
         << range->bytes << " bytes";
    return text.str();
  }
  for (const Range& freed : freed_)
    if (address >= freed.begin && address < freed.begin + freed.bytes) {
      text << " are in " << name_of(freed.kind) << " memory that has been freed";
      return text.str();
    }
  text << " are neither device memory nor pinned";
  return text.str();
}

std::size_t Ranges::bytes_on(int device) const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [begin, range] : living_)
    if (range.kind == GRADRING_MEMORY_DEVICE && range.device == device) bytes += range.bytes;
  return bytes;
}

std::size_t Ranges::count(int kind) const {
  const std::lock_guard lock(mutex_);
  std::size_t found = 0;
  for (const auto& [begin, range] : living_) found += range.kind == kind ? 1u : 0u;
  return found;
}

}  // namespace gradring::emulated
