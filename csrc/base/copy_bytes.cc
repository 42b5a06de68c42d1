#include "base/copy_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/processor.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gradring {

void copy_from_core(void* to_place, const void* from_place, std::size_t bytes) {
  if (copies_between_cores_by_itself()) {
    if (bytes > 0) std::memcpy(to_place, from_place, bytes);
    return;
  }
  constexpr std::size_t kAheadBytes = 2048;   // 1 KiB comes too late, more gains nothing (Zen 4).
  constexpr std::size_t kStretchBytes = 512;  // Of which C libraries copy in vectors.
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  prefetch_near(src, std::min(kAheadBytes, bytes));
  std::size_t at = 0;
  for (; at + kStretchBytes <= bytes; at += kStretchBytes) {
    const std::size_t ahead = at + kAheadBytes;
    if (ahead < bytes) prefetch_near(src + ahead, std::min(kStretchBytes, bytes - ahead));
    std::memcpy(dst + at, src + at, kStretchBytes);
  }
  if (at < bytes) std::memcpy(dst + at, src + at, bytes - at);
}

#if defined(__SSE2__)

namespace {

template <auto kStore>
void copy_line(std::byte* dst, const std::byte* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  kStore(to, a);
  kStore(to + 1, b);
  kStore(to + 2, c);
  kStore(to + 3, d);
}

// Instructions have no address.
void store(__m128i* to, __m128i value) {
  _mm_storeu_si128(to, value);
}
void store_past_caches(__m128i* to, __m128i value) {
  _mm_stream_si128(to, value);
}

}  // namespace

void copy_in_vectors(void* to_place, const void* from_place, std::size_t bytes) {
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  std::size_t at = 0;
  for (; at + kCacheLineBytes <= bytes; at += kCacheLineBytes) copy_line<store>(dst + at, src + at);
  if (at < bytes) std::memcpy(dst + at, src + at, bytes - at);
}

void stream_bytes(void* to_place, const void* from_place, std::size_t bytes) {
  auto* const dst = static_cast<std::byte*>(to_place);
  const auto* const src = static_cast<const std::byte*>(from_place);
  const std::size_t head = bytes_before_line(dst, bytes);
  copy_bytes(dst, src, head);
  std::size_t at = head;
  for (; at + kCacheLineBytes <= bytes; at += kCacheLineBytes)
    copy_line<store_past_caches>(dst + at, src + at);
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
