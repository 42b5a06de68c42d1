// copy(): memcpy, or stores that pass by the cache when the result would only push everything else
// out of it.
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "kernels/reduce.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradring::kernels {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kLineBytes = 64;

std::size_t last_level_cache_bytes() {
  constexpr std::size_t kDefault = 16 * 1024 * 1024;
  const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : kDefault;
}

void stream_line(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

// The fence orders the streamed lines before whatever the caller writes next, a flag for another
// process among others: these stores alone are not ordered on x86.
void stream(std::byte* dst, const std::byte* src, std::size_t bytes) {
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(dst) % kLineBytes;
  const std::size_t head = past_line == 0 ? 0 : kLineBytes - past_line;
  std::memcpy(dst, src, head);
  std::size_t at = head;
  for (; at + kLineBytes <= bytes; at += kLineBytes) stream_line(dst + at, src + at);
  std::memcpy(dst + at, src + at, bytes - at);
  _mm_sfence();
}

}  // namespace

void copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  static const std::size_t threshold = last_level_cache_bytes();
  if (bytes > threshold) return stream(dst, src, bytes);
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

#else

void copy(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

#endif

}  // namespace gradring::kernels
