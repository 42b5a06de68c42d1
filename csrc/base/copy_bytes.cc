#include "base/copy_bytes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradring {

#if defined(__SSE2__)

void copy_in_vectors(void* to_place, const void* from_place, std::size_t bytes) {
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  constexpr std::size_t kLineBytes = 64;
  std::size_t at = 0;
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    const auto* from = reinterpret_cast<const __m128i*>(src + at);
    auto* to = reinterpret_cast<__m128i*>(dst + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_storeu_si128(to, a);
    _mm_storeu_si128(to + 1, b);
    _mm_storeu_si128(to + 2, c);
    _mm_storeu_si128(to + 3, d);
  }
  if (at < bytes) std::memcpy(dst + at, src + at, bytes - at);
}

#else

void copy_in_vectors(void* dst, const void* src, std::size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

#endif

}  // namespace gradring
