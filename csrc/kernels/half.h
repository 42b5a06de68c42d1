// Elements as they lie in memory, and as they are computed with: float16 and bfloat16 are widened
// to float32 and rounded to nearest, ties to even. One text for CPU and GPU, by integer
// arithmetic, so that loops over it become vectors on any processor; a GPU has instructions that
// give the same bits. Pure functions.
#pragma once

#include "kernels/portable.h"

namespace gradring::kernels {

// Each has Item (in memory), Work (computed with) and
//   widened    exact;
//   rounded    what is too large becomes an infinity, every NaN the one of kernels/reduce.h;
//   saturated  what is finite stays finite, a NaN keeps its sign: what the codecs send.

struct Float32 {
  using Item = float;
  using Work = float;
  static GRADRING_HD Work widened(Item item) { return item; }
  static GRADRING_HD Item rounded(Work work) { return with_one_nan(work); }
  static GRADRING_HD Item saturated(Work work) { return work; }
};

struct Float64 {
  using Item = double;
  using Work = double;
  static GRADRING_HD Work widened(Item item) { return item; }
  static GRADRING_HD Item rounded(Work work) { return with_one_nan(work); }
  static GRADRING_HD Item saturated(Work work) { return work; }
};

struct BFloat16 {
  using Item = std::uint16_t;
  using Work = float;

  static GRADRING_HD Work widened(Item item) {
    return float_of(static_cast<std::uint32_t>(item) << 16);
  }

  // Adding just under half of the last kept place, and the last kept bit itself, carries upwards
  // exactly when rounding to nearest even does. The one NaN has so few bits that it cannot
  // overflow.
  static GRADRING_HD Item rounded(Work work) {
#if defined(__CUDA_ARCH__)
    Item item;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(item) : "f"(work));
    return work == work ? item : static_cast<Item>(kNanBits >> 16);
#else
    const std::uint32_t bits = bits_of(with_one_nan(work));
    return static_cast<Item>((bits + (0x7FFFu + ((bits >> 16) & 1u))) >> 16);
#endif
  }

  static GRADRING_HD Item saturated(Work work) {
    const std::uint32_t bits = bits_of(work);
    const std::uint32_t magnitude = bits & kMagnitudeBits;
    const std::uint32_t nearest = magnitude + (0x7FFFu + ((magnitude >> 16) & 1u));
    const std::uint32_t finite = nearest < 0x7F7FFFFFu ? nearest : 0x7F7FFFFFu;
    const std::uint32_t special = magnitude > kInfinityBits ? kNanBits : kInfinityBits;
    const std::uint32_t result = magnitude < kInfinityBits ? finite : special;
    return static_cast<Item>((result | (bits & ~kMagnitudeBits)) >> 16);
  }
};

// float16's exponent counts from 15, float32's from 127.
struct Float16 {
  using Item = std::uint16_t;
  using Work = float;

  static GRADRING_HD Work widened(Item item) {
#if defined(__CUDA_ARCH__)
    float work;
    asm("cvt.f32.f16 %0, %1;" : "=f"(work) : "h"(item));
    return work;
#else
    const std::uint32_t magnitude = (item & 0x7FFFu) << 13;
    // A denormal is a fraction of 2^-14 without the leading one: put the one there, take it off.
    const float denormal = float_of(magnitude + (113u << 23)) - 0x1p-14F;
    const std::uint32_t normal = magnitude + (112u << 23);
    const std::uint32_t finite = magnitude < (1u << 23) ? bits_of(denormal) : normal;
    const std::uint32_t value = magnitude >= (31u << 23) ? magnitude + (224u << 23) : finite;
    return float_of(value | (static_cast<std::uint32_t>(item & 0x8000u) << 16));
#endif
  }

  static GRADRING_HD Item rounded(Work work) {
#if defined(__CUDA_ARCH__)
    Item item;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(item) : "f"(work));
    return work == work ? item : Item{0x7E00};
#else
    const std::uint32_t bits = bits_of(with_one_nan(work));
    const std::uint32_t magnitude = bits & kMagnitudeBits;
    const std::uint32_t special = magnitude > kInfinityBits ? 0x7E00u : 0x7C00u;
    const std::uint32_t value = magnitude >= 0x477FF000u ? special : small(magnitude);
    return static_cast<Item>(value | ((bits >> 16) & 0x8000u));
#endif
  }

  static GRADRING_HD Item saturated(Work work) {
    const std::uint32_t bits = bits_of(work);
    const std::uint32_t magnitude = bits & kMagnitudeBits;
    const std::uint32_t finite = magnitude >= 0x477FF000u ? 0x7BFFu : small(magnitude);
    const std::uint32_t special = magnitude > kInfinityBits ? 0x7E00u : 0x7C00u;
    const std::uint32_t result = magnitude < kInfinityBits ? finite : special;
    return static_cast<Item>(result | ((bits >> 16) & 0x8000u));
  }

 private:
  // Of a magnitude that does not round to more than the largest finite one.
  static GRADRING_HD std::uint32_t small(std::uint32_t magnitude) {
    const std::uint32_t normal =
        (magnitude - (112u << 23) + (0x0FFFu + ((magnitude >> 13) & 1u))) >> 13;
    // In 0.5's binade the last place is 2^-24, that of float16's denormals: the addition rounds.
    const std::uint32_t denormal = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000u;
    return magnitude < 0x38800000u ? denormal : normal;
  }
};

}  // namespace gradring::kernels
