// Ranges: what memory there is, of which kind and where. Freed memory is kept for a while, filled
// with a pattern, so that whoever still uses it is found and does not read its next owner's. Used
// by the emulated runtime; callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "gpu/api.h"

namespace gradring::emulated {

struct Range {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  int kind = GRADRING_MEMORY_HOST;
  int device = -1;
  bool is_registered = false;  // The caller's own memory.
};

class Ranges {
 public:
  // nullptr where there is no memory left.
  void* allocate(int kind, int device, std::size_t bytes);
  bool add_registered(void* pointer, std::size_t bytes);
  // False: no such allocation of that kind begins there.
  bool release(void* pointer, int kind, bool is_registered);

  std::optional<Range> find(const void* pointer) const;
  // "" if all of it lies in one living allocation of a kind that a device can reach; else what is
  // wrong.
  std::string complaint(const void* pointer, std::size_t bytes, const char* what) const;

  std::size_t bytes_on(int device) const;
  std::size_t count(int kind) const;

 private:
  std::optional<Range> find_locked(std::uintptr_t address) const;
  void quarantine(const Range& range);

  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Range> living_;  // By begin.
  std::deque<Range> freed_;                 // Oldest first.
  std::size_t freed_bytes_ = 0;
};

Ranges& ranges();  // Never destroyed: streams may still run when the process ends.

}  // namespace gradring::emulated
