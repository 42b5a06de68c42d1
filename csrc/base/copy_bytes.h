// Copies. copy_bytes: memcpy, but for places where a processor's own copy instruction is twenty
// times slower. On AMD's Zen 3 `rep movsb`, which C libraries use for more than some 2 KiB, needs a
// cycle and more for each byte when the destination lies 1 to 31 bytes behind the source within
// their pages (measured: 2 instead of 45 GB/s; glibc's bug 30994 reports the same of Zen 4). malloc
// puts large arrays 16 bytes behind a page, shared memory begins with one: that is such a pair.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/prefetch.h"

namespace gradring {

// How many of `bytes` from `at` on lie before the first line that begins there.
inline std::size_t bytes_before_line(const void* at, std::size_t bytes) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(at) % kCacheLineBytes;
  return past == 0 ? 0 : std::min(bytes, kCacheLineBytes - past);
}

// Without such an instruction, wherever they lie.
void copy_in_vectors(void* dst, const void* src, std::size_t bytes);

// The ranges do not overlap.
inline void copy_bytes(void* dst, const void* src, std::size_t bytes) {
  constexpr std::size_t kLongBytes = 2048;  // Below it C libraries use vectors.
  constexpr std::uintptr_t kPageBytes = 4096;
  constexpr std::uintptr_t kCloseBytes = 64;  // 32 and a margin: vectors are as fast there.
  const std::uintptr_t apart =
      (reinterpret_cast<std::uintptr_t>(dst) - reinterpret_cast<std::uintptr_t>(src)) % kPageBytes;
  if (bytes >= kLongBytes && apart != 0 && apart < kCloseBytes)
    copy_in_vectors(dst, src, bytes);
  else if (bytes > 0)
    std::memcpy(dst, src, bytes);
}

// The same from memory that another core has written, whose lines may still lie changed in that
// core's own cache. A processor's prefetcher waits for each of those; asked for by name they come
// at the rate of the third-level cache
// (docs/decisions/0019-lines-of-another-core-are-asked-for.md). Not on every processor:
// processor.h.
void copy_from_core(void* dst, const void* src, std::size_t bytes);

// Past the caches: what is written does not push out what lies there, and lines are not read before
// they are replaced. Nothing that is written later may be seen before it once end_streams() was
// called (a flag for another process, say): on x86 these stores alone are in no order.
void stream_bytes(void* dst, const void* src, std::size_t bytes);
void end_streams();

}  // namespace gradring
