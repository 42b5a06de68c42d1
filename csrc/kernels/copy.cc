// Copies of results: memcpy, or stores that pass by the cache when they would only push everything
// else out of it. Such a store also saves reading the line that it replaces.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/copy_bytes.h"
#include "base/processor.h"
#include "kernels/reduce.h"

namespace gradring::kernels {
namespace {

void plain(std::byte* dst, const std::byte* src, std::size_t bytes) {
  copy_bytes(dst, src, bytes);
}

void stream(std::byte* dst, const std::byte* src, std::size_t bytes) {
  stream_bytes(dst, src, bytes);
  end_streams();
}

void vectors(std::byte* dst, const std::byte* src, std::size_t bytes) {
  copy_in_vectors(dst, src, bytes);
}

void plain_from_core(std::byte* dst, const std::byte* src, std::size_t bytes) {
  copy_from_core(dst, src, bytes);
}

// A virtual machine is told of the whole cache of a processor that it has a few cores of.
constexpr std::size_t kMostBytesOfCpu = std::size_t{16} << 20;

struct LastLevelCache {
  std::size_t bytes = std::size_t{16} << 20;  // Of one cache.
  std::size_t caches = 1;                     // Of this host.
};

std::ifstream about_cache(const char* what) {
  return std::ifstream(std::string("/sys/devices/system/cpu/cpu0/cache/index3/") + what);
}

// How many processors share the first one's cache; 0: the system does not say.
std::size_t sharers() {
  std::ifstream map = about_cache("shared_cpu_map");
  std::size_t count = 0;
  for (char digit; map >> digit;) {
    if (digit == ',') continue;
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    count += static_cast<std::size_t>(std::popcount(static_cast<unsigned>(value)));
  }
  return count;
}

// The kernel knows better than sysconf(), which on some processors gives all caches of the package
// as one, whether this machine has them or not.
LastLevelCache last_level_cache() {
  LastLevelCache cache;
  std::size_t kibibytes = 0;
  const long all = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (about_cache("size") >> kibibytes && kibibytes > 0)
    cache.bytes = kibibytes * 1024;
  else if (all > 0)
    cache.bytes = static_cast<std::size_t>(all);
  const auto cpus = static_cast<std::size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  if (const std::size_t each = sharers(); each > 0)
    cache.caches = std::max<std::size_t>(1, cpus / each);
  cache.bytes = std::min(cache.bytes, cpus * kMostBytesOfCpu);
  return cache;
}

bool fits(std::size_t bytes, std::size_t ranks) {
  static const LastLevelCache cache = last_level_cache();
  return bytes == 0 || (bytes <= cache.bytes && bytes * ranks < cache.bytes * cache.caches);
}

}  // namespace

Copy* copy_for(std::size_t bytes, std::size_t ranks) {
  return fits(bytes, ranks) ? plain : stream;
}

Copy* copy_past_caches() {
  return stream;
}

Copy* copy_into_caches() {
  return plain;
}

Copy* copy_between_caches() {
  return copies_between_cores_by_itself() ? plain_from_core : vectors;
}

Copy* copy_from_core_for(std::size_t bytes, std::size_t ranks) {
  return fits(bytes, ranks) ? plain_from_core : stream;
}

void copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  copy_for(bytes, 1)(dst, src, bytes);
}

}  // namespace gradring::kernels
