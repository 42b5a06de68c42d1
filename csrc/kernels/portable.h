// What arithmetic needs that is shared by CPU and GPU: a mark for functions that nvcc compiles for
// both, and the operations that the two compilers spell differently. No include of CUDA's or of the
// standard library's inline functions: GRADRING_HD functions are inlined in every instruction set's
// file, so that the linker cannot hand one file's copy to the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define GRADRING_HD __host__ __device__ __forceinline__
#else
#define GRADRING_HD inline __attribute__((always_inline))
#endif

namespace gradring::kernels {

template <typename To, typename From>
GRADRING_HD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

GRADRING_HD std::uint32_t bits_of(float value) {
  return bits_as<std::uint32_t>(value);
}
GRADRING_HD float float_of(std::uint32_t bits) {
  return bits_as<float>(bits);
}

inline constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFFu;
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kNanBits = 0x7FC00000u;  // The one quiet NaN (kernels/reduce.h).

GRADRING_HD bool is_finite(float value) {
  return (bits_of(value) & kMagnitudeBits) < kInfinityBits;
}
GRADRING_HD bool is_finite(double value) {
  return (bits_as<std::uint64_t>(value) & 0x7FFFFFFFFFFFFFFFu) < 0x7FF0000000000000u;
}

// Every NaN becomes the positive quiet one without a payload.
GRADRING_HD float with_one_nan(float value) {
  return value == value ? value : float_of(kNanBits);
}
GRADRING_HD double with_one_nan(double value) {
  return value == value ? value : bits_as<double>(std::uint64_t{0x7FF8000000000000u});
}

// a * b + c, rounded once.
GRADRING_HD float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
GRADRING_HD double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

GRADRING_HD float root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}
GRADRING_HD double root(double a) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(a);
#else
  return __builtin_sqrt(a);
#endif
}

}  // namespace gradring::kernels
