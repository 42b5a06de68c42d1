// Vectors of elements and the operators on them, for one instruction set. Included by reduce_body.h
// only, which is compiled once per instruction set: everything here has internal linkage and calls
// no inline function of the standard library, or the linker could hand one translation unit's
// AVX-512 copy to the whole program. Written with the compiler's vector types, so that baseline,
// AVX2, AVX-512 and other processors share one text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// Vectors of type Work that travel together, to hide one's latency behind the others. A sanitizer's
// checks make each inlined copy many times as long, and compiling it minutes: there it is one.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GRADRING_INLINE inline
#define GRADRING_WORKS_TOGETHER 2
#else
#define GRADRING_INLINE inline __attribute__((always_inline))
#define GRADRING_WORKS_TOGETHER 4
#endif

namespace gradring::kernels {
namespace {

inline constexpr std::size_t kVectorBytes = GRADRING_VECTOR_BYTES;

template <typename T, std::size_t kBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
template <typename T, std::size_t kBytes = kVectorBytes>
using Vector = typename VectorOf<T, kBytes>::Type;

using Floats = Vector<float>;
using Bits = Vector<std::uint32_t>;
using HalfBits = Vector<std::uint16_t, kVectorBytes / 2>;

template <typename To, typename From>
GRADRING_INLINE To read_as(const From* from) {
  To value;
  __builtin_memcpy(&value, from, sizeof(To));
  return value;
}

// Which of two NaNs survives an addition depends on how a compiler orders the operands, and
// processors differ too. So every NaN becomes the one positive quiet NaN without a payload on its
// way to memory: a result cannot depend on the path it took.
template <typename Work, typename Item>
GRADRING_INLINE Work with_one_nan(Work work, Item nan) {
  return work == work ? work : Work{} + nan;
}

// What follows are the lanes: how memory becomes vectors of type Work and back. kBytes of memory
// fill kWorks of them, kItemBytes are one element; no alignment is assumed. kUnroll times kBytes
// travel together. Lanes that compute in floating point name its type, Item.

template <typename T>
struct IntegerLanes {
  using Work = Vector<T>;
  static constexpr std::size_t kItemBytes = sizeof(T);
  static constexpr std::size_t kBytes = kVectorBytes;
  static constexpr std::size_t kWorks = 1;
  static constexpr std::size_t kUnroll = GRADRING_WORKS_TOGETHER;
  static constexpr bool kIsFloat = false;
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    works[0] = read_as<Work>(from);
  }
  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    __builtin_memcpy(to, works, kBytes);
  }
};

// Any byte but zero is true; true is stored as 1.
struct BoolLanes : IntegerLanes<std::uint8_t> {
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    works[0] = (Work)(read_as<Work>(from) != 0) & std::uint8_t{1};
  }
};

template <typename T>
struct FloatLanes {
  using Item = T;
  using Work = Vector<T>;
  static constexpr std::size_t kItemBytes = sizeof(T);
  static constexpr std::size_t kBytes = kVectorBytes;
  static constexpr std::size_t kWorks = 1;
  static constexpr std::size_t kUnroll = GRADRING_WORKS_TOGETHER;
  static constexpr bool kIsFloat = true;
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    works[0] = read_as<Work>(from);
  }
  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    const Work result = with_one_nan(works[0], static_cast<T>(__builtin_nanf("")));
    __builtin_memcpy(to, &result, kBytes);
  }
};

// A 32-bit word of memory holds two elements: works[0] gets the lower ones, works[1] the upper
// ones, which are float32 where they lie. That spares the shuffles that widening in order takes.
struct BFloat16Lanes {
  using Item = float;
  using Work = Floats;
  static constexpr std::size_t kItemBytes = 2;
  static constexpr std::size_t kBytes = kVectorBytes;
  static constexpr std::size_t kWorks = 2;
  static constexpr std::size_t kUnroll = GRADRING_WORKS_TOGETHER / 2;
  static constexpr bool kIsFloat = true;
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    const Bits words = read_as<Bits>(from);
    works[0] = (Work)(words << 16);
    works[1] = (Work)(words & 0xFFFF0000u);
  }
  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    const Bits words = (rounded(works[0]) >> 16) | (rounded(works[1]) & 0xFFFF0000u);
    __builtin_memcpy(to, &words, kBytes);
  }

 private:
  // Adding just under half of the last kept place, and the last kept bit itself, carries upwards
  // exactly when rounding to nearest even does. The one NaN has so few bits that it cannot
  // overflow.
  static GRADRING_INLINE Bits rounded(Work work) {
    const Bits bits = (Bits)with_one_nan(work, __builtin_nanf(""));
    return bits + (0x7FFFu + ((bits >> 16) & 1u));
  }
};

#if defined(__F16C__)

struct Float16Lanes {
  using Item = float;
  using Work = Floats;
  static constexpr std::size_t kItemBytes = 2;
  static constexpr std::size_t kBytes = kVectorBytes / 2;
  static constexpr std::size_t kWorks = 1;
  static constexpr std::size_t kUnroll = GRADRING_WORKS_TOGETHER;
  static constexpr bool kIsFloat = true;
  static constexpr int kToNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
#if GRADRING_VECTOR_BYTES == 64
  // GCC 12 warns of an uninitialized value inside the forms without a mask.
  static constexpr __mmask16 kAllLanes = 0xFFFF;
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    works[0] = (Work)_mm512_maskz_cvtph_ps(kAllLanes, read_as<__m256i>(from));
  }
  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    const __m512 widened = (__m512)with_one_nan(works[0], __builtin_nanf(""));
    const __m256i result = _mm512_maskz_cvtps_ph(kAllLanes, widened, kToNearestEven);
    __builtin_memcpy(to, &result, kBytes);
  }
#else
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    works[0] = (Work)_mm256_cvtph_ps(read_as<__m128i>(from));
  }
  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    const __m256 widened = (__m256)with_one_nan(works[0], __builtin_nanf(""));
    const __m128i result = _mm256_cvtps_ph(widened, kToNearestEven);
    __builtin_memcpy(to, &result, kBytes);
  }
#endif
};

#else

// The same conversions by integer arithmetic.
struct Float16Lanes {
  using Item = float;
  using Work = Floats;
  static constexpr std::size_t kItemBytes = 2;
  static constexpr std::size_t kBytes = kVectorBytes / 2;
  static constexpr std::size_t kWorks = 1;
  static constexpr std::size_t kUnroll = 1;  // Long enough as it is.
  static constexpr bool kIsFloat = true;

  // float16's exponent counts from 15, float32's from 127.
  static GRADRING_INLINE void load(const std::byte* from, Work* works) {
    const Bits half = __builtin_convertvector(read_as<HalfBits>(from), Bits);
    const Bits magnitude = (half & 0x7FFFu) << 13;
    const Bits normal = magnitude + (112u << 23);
    const Bits not_finite = magnitude + (224u << 23);
    // A denormal is a fraction of 2^-14 without the leading one: put the one there, take it off.
    const Floats denormal = (Floats)(magnitude + (113u << 23)) - 0x1p-14f;
    const Bits finite = magnitude < (1u << 23) ? (Bits)denormal : normal;
    const Bits value = magnitude >= (31u << 23) ? not_finite : finite;
    works[0] = (Work)(value | ((half & 0x8000u) << 16));
  }

  static GRADRING_INLINE void store(std::byte* to, const Work* works) {
    const Bits bits = (Bits)with_one_nan(works[0], __builtin_nanf(""));
    const Bits magnitude = bits & 0x7FFFFFFFu;
    const Bits normal = (magnitude - (112u << 23) + (0x0FFFu + ((magnitude >> 13) & 1u))) >> 13;
    // In 0.5's binade the last place is 2^-24, that of float16's denormals: the addition rounds.
    const Bits denormal = (Bits)((Floats)magnitude + 0.5f) - 0x3F000000u;
    const Bits not_finite = 0x7C00u + ((Bits)(magnitude > 0x7F800000u) & 0x0200u);
    const Bits finite = magnitude < 0x38800000u ? denormal : normal;
    const Bits value = magnitude >= 0x47800000u ? not_finite : finite;
    const Bits half = value | ((bits >> 16) & 0x8000u);
    const HalfBits result = __builtin_convertvector(half, HalfBits);
    __builtin_memcpy(to, &result, kBytes);
  }
};

#endif

// The operators. Sum and Prod are used on unsigned integers only, where wrapping is defined.

struct Sum {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    return a + b;
  }
};

struct Prod {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    return a * b;
  }
};

struct Band {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    return a & b;
  }
};

struct Bor {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    return a | b;
  }
};

struct Bxor {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    return a ^ b;
  }
};

// The smaller of two floats, as IEEE 754-2019's minimum: NaN wins, -0 < +0. Asked both ways round,
// the two answers differ only for zeros, where "or" keeps the sign, and for a NaN, where "or" of
// anything with a NaN is a NaN. So the order of operands does not matter.
template <typename Item, typename Work>
GRADRING_INLINE Work smaller(Work a, Work b) {
  using Word = Vector<std::conditional_t<sizeof(Item) == 8, std::uint64_t, std::uint32_t>>;
  return (Work)((Word)(b < a ? b : a) | (Word)(a < b ? a : b));
}

struct Min {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    if constexpr (Lanes::kIsFloat) {
      return smaller<typename Lanes::Item>(a, b);
    } else {
      return b < a ? b : a;
    }
  }
};

struct Max {
  template <typename Lanes>
  static GRADRING_INLINE typename Lanes::Work of(typename Lanes::Work a, typename Lanes::Work b) {
    if constexpr (Lanes::kIsFloat) {
      return -smaller<typename Lanes::Item>(-a, -b);
    } else {
      return a < b ? b : a;
    }
  }
};

}  // namespace
}  // namespace gradring::kernels
