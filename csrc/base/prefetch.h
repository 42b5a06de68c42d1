// Asking for memory before it is needed: rows and slots lie anywhere in gigabytes. The only place
// that has the builtin: GCC takes a function that only prefetches for one without effects, and
// drops the calls that it does not inline (GEO's kernels took 1.7 times as long for a while).
#pragma once

#include <algorithm>
#include <cstddef>

#define GRADRING_PREFETCHES __attribute__((always_inline))

namespace gradring {

inline constexpr std::size_t kCacheLineBytes = 64;

// Into the second cache: the first one can wait for few lines at a time, and a block of rows has
// more. A Zen 4 reads and updates rows of a table that fits no cache in three quarters of the time.
GRADRING_PREFETCHES inline void prefetch_line(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

// Into the first one: single lines of what is mostly in the second.
GRADRING_PREFETCHES inline void prefetch_near(const void* line) {
  __builtin_prefetch(line, 0, 3);
}

// The same for a run of lines.
GRADRING_PREFETCHES inline void prefetch_near(const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes)
    prefetch_near(static_cast<const char*>(from) + at);
}

// What will be read once, and by nobody else soon: it comes into the first cache and leaves the
// others as they are, where a processor has that.
GRADRING_PREFETCHES inline void prefetch_once(const void* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes)
    __builtin_prefetch(static_cast<const char*>(from) + at, 0, 0);
}

// Behind the first line of a row. A processor sees a run of lines by itself, but late: with 2 KiB
// asked for a Zen 4 updates rows of 1 KiB in 0.57 of the time that it takes with 512 bytes.
GRADRING_PREFETCHES inline void prefetch_rest_of_row(const float* row, std::size_t floats) {
  constexpr std::size_t kLineFloats = kCacheLineBytes / sizeof(float);
  constexpr std::size_t kMostFloats = 32 * kLineFloats;
  for (std::size_t at = kLineFloats; at < std::min(floats, kMostFloats); at += kLineFloats)
    prefetch_line(row + at);
}

GRADRING_PREFETCHES inline void prefetch_row(const float* row, std::size_t floats) {
  prefetch_line(row);
  prefetch_rest_of_row(row, floats);
}

}  // namespace gradring
