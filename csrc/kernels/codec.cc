#include "kernels/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/clones.h"
#include "kernels/codec_top.h"
#include "kernels/half.h"
#include "kernels/quantise.h"

namespace gradring::kernels {
namespace {

constexpr std::size_t kBlock = kQuantiseBlock;

std::size_t blocks_of(std::size_t count) {
  return (count + kBlock - 1) / kBlock;
}

// What is left of `value` where `decoded` went.
float left_of(float value, float decoded) {
  return is_finite(value) ? value - decoded : 0.0F;
}

template <typename Half>
inline __attribute__((always_inline)) void encode_halves(const float* values, float* residual,
                                                         std::size_t count, std::byte* out) {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::uint16_t halves[kBlock];
    if (residual == nullptr) {
      for (std::size_t i = 0; i < size; ++i) halves[i] = Half::saturated(values[begin + i]);
    } else {
      for (std::size_t i = 0; i < size; ++i) {
        const float value = values[begin + i] + residual[begin + i];
        halves[i] = Half::saturated(value);
        residual[begin + i] = left_of(value, Half::widened(halves[i]));
      }
    }
    std::memcpy(out + begin * sizeof halves[0], halves, size * sizeof halves[0]);
  }
}

template <typename Half>
inline __attribute__((always_inline)) void decode_halves(const std::byte* from, std::size_t count,
                                                         float* dst, bool adds) {
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    std::uint16_t halves[kBlock];
    std::memcpy(halves, from + begin * sizeof halves[0], size * sizeof halves[0]);
    if (adds) {
      for (std::size_t i = 0; i < size; ++i) dst[begin + i] += Half::widened(halves[i]);
    } else {
      for (std::size_t i = 0; i < size; ++i) dst[begin + i] = Half::widened(halves[i]);
    }
  }
}

GRADRING_CLONES void encode_bfloat16(const float* values, float* residual, std::size_t count,
                                     std::byte* out) {
  encode_halves<BFloat16>(values, residual, count, out);
}
GRADRING_CLONES void decode_bfloat16(const std::byte* from, std::size_t count, float* dst,
                                     bool adds) {
  decode_halves<BFloat16>(from, count, dst, adds);
}
GRADRING_CLONES void encode_float16(const float* values, float* residual, std::size_t count,
                                    std::byte* out) {
  encode_halves<Float16>(values, residual, count, out);
}
GRADRING_CLONES void decode_float16(const std::byte* from, std::size_t count, float* dst,
                                    bool adds) {
  decode_halves<Float16>(from, count, dst, adds);
}

inline __attribute__((always_inline)) void encode_block(const float* v, std::size_t size,
                                                        float scale, std::int8_t* codes) {
  if (!(scale > 0)) {
    std::memset(codes, 0, size);
    return;
  }
  for (std::size_t i = 0; i < size; ++i) codes[i] = static_cast<std::int8_t>(code_of(v[i], scale));
}

// All scales, then all codes.
GRADRING_CLONES void encode_int8(const float* values, float* residual, std::size_t count,
                                 std::byte* out) {
  std::byte* codes_at = out + blocks_of(count) * sizeof(float);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    float v[kBlock];
    std::int8_t codes[kBlock];
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < size; ++i)
      v[i] = residual == nullptr ? values[begin + i] : values[begin + i] + residual[begin + i];
    for (std::size_t i = 0; i < size; ++i)
      largest = std::max(largest, bits_of(v[i]) & kMagnitudeBits);
    const float scale = scale_for(largest);
    encode_block(v, size, scale, codes);
    std::memcpy(out + begin / kBlock * sizeof scale, &scale, sizeof scale);
    std::memcpy(codes_at + begin, codes, size);
    if (residual == nullptr) continue;
    const bool is_lost = largest >= kInfinityBits;  // It went as NaNs.
    for (std::size_t i = 0; i < size; ++i)
      residual[begin + i] = is_lost ? 0.0F : v[i] - decoded(codes[i], scale);
  }
}

GRADRING_CLONES void decode_int8(const std::byte* from, std::size_t count, float* dst, bool adds) {
  const std::byte* codes_at = from + blocks_of(count) * sizeof(float);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    float scale;
    std::int8_t codes[kBlock];
    std::memcpy(&scale, from + begin / kBlock * sizeof scale, sizeof scale);
    std::memcpy(codes, codes_at + begin, size);
    scale = trusted_scale(scale);
    if (adds) {
      for (std::size_t i = 0; i < size; ++i) dst[begin + i] += decoded(codes[i], scale);
    } else {
      for (std::size_t i = 0; i < size; ++i) dst[begin + i] = decoded(codes[i], scale);
    }
  }
}

}  // namespace

std::string_view name(CodecKind kind) {
  constexpr std::string_view kNames[kCodecKindCount] = {"bf16", "fp16", "int8", "top-k"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::size_t encoded_bytes(const Codec& codec, std::size_t count) {
  switch (codec.kind) {
    case CodecKind::kBFloat16:
    case CodecKind::kFloat16: return 2 * count;
    case CodecKind::kInt8: return count + blocks_of(count) * sizeof(float);
    case CodecKind::kTopK: break;
  }
  if (!(codec.ratio > 0 && codec.ratio <= 1))
    throw InvalidArgument(str("top-k: the ratio must be in (0, 1], got ", codec.ratio));
  if (count > UINT32_MAX) throw InvalidArgument(str("top-k: ", count, " elements are too many"));
  return kept_count(codec.ratio, count) * (sizeof(std::uint32_t) + sizeof(float));
}

void encode(const Codec& codec, const float* values, float* residual, std::size_t count,
            std::byte* out) {
  switch (codec.kind) {
    case CodecKind::kBFloat16: return encode_bfloat16(values, residual, count, out);
    case CodecKind::kFloat16: return encode_float16(values, residual, count, out);
    case CodecKind::kInt8: return encode_int8(values, residual, count, out);
    case CodecKind::kTopK:
      return encode_top(kept_count(codec.ratio, count), values, residual, count, out);
  }
}

void decode(const Codec& codec, const std::byte* from, std::size_t count, float* dst, bool adds) {
  switch (codec.kind) {
    case CodecKind::kBFloat16: return decode_bfloat16(from, count, dst, adds);
    case CodecKind::kFloat16: return decode_float16(from, count, dst, adds);
    case CodecKind::kInt8: return decode_int8(from, count, dst, adds);
    case CodecKind::kTopK:
      return decode_top(kept_count(codec.ratio, count), from, count, dst, adds);
  }
}

}  // namespace gradring::kernels
