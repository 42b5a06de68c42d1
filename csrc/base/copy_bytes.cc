#include "base/copy_bytes.h"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradring {

#if defined(__SSE2__)

namespace {
constexpr std::size_t kCopiedLineBytes = 64;
}

void copy_in_vectors(void* to_place, const void* from_place, std::size_t bytes) {
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  std::size_t at = 0;
  for (; at + kCopiedLineBytes <= bytes; at += kCopiedLineBytes) {
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

namespace {

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

}  // namespace

void stream_bytes(void* to_place, const void* from_place, std::size_t bytes) {
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(dst) % kCopiedLineBytes;
  const std::size_t head = past_line == 0 ? 0 : std::min(bytes, kCopiedLineBytes - past_line);
  copy_bytes(dst, src, head);
  std::size_t at = head;
  for (; at + kCopiedLineBytes <= bytes; at += kCopiedLineBytes) stream_line(dst + at, src + at);
  copy_bytes(dst + at, src + at, bytes - at);
}

void end_streams() {
  _mm_sfence();
}

#else

void copy_in_vectors(void* dst, const void* src, std::size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

void stream_bytes(void* dst, const void* src, std::size_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
}

void end_streams() {}

#endif

}  // namespace gradring
