// Vectors of float32 that arithmetic may go wrong on, for tests that compare bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace gradring::testing {

enum class Floats {
  kNormal,  // Of many magnitudes.
  kOdd,     // Any bits: NaNs, infinities, denormals, zeros of either sign.
  kTiny,    // Denormals and what is near them.
  kHuge,    // Sums of two overflow.
  kEqual,   // One magnitude, either sign.
  kSparse,  // Nine of ten are zeros of either sign.
};
inline constexpr Floats kAllFloats[] = {Floats::kNormal, Floats::kOdd,   Floats::kTiny,
                                        Floats::kHuge,   Floats::kEqual, Floats::kSparse};

inline float draw(Floats kind, std::mt19937& dice) {
  const float sign = dice() % 2 == 0 ? 1.0F : -1.0F;
  const float some = std::normal_distribution<float>()(dice);
  switch (kind) {
    case Floats::kNormal: return std::ldexp(some, static_cast<int>(dice() % 20) - 10);
    case Floats::kOdd: {
      constexpr std::uint32_t kSpecial[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC01234u,
                                            0x7F812345u, 0x00000001u, 0x80000000u, 0u};
      const auto bits = static_cast<std::uint32_t>(dice());
      return dice() % 8 == 0 ? std::bit_cast<float>(kSpecial[bits % 8])
                             : std::bit_cast<float>(bits);
    }
    case Floats::kTiny:
      return sign * std::bit_cast<float>(static_cast<std::uint32_t>(dice() % 0x01000000u));
    case Floats::kHuge: return sign * std::ldexp(1 + std::fabs(some) / 8, 126);
    case Floats::kEqual: return sign * 0.75F;
    case Floats::kSparse: return dice() % 10 == 0 ? some : sign * 0.0F;
  }
  return 0;
}

inline std::vector<float> floats(Floats kind, std::size_t count, std::uint32_t seed) {
  std::mt19937 dice(seed);
  std::vector<float> values(count);
  for (float& value : values) value = draw(kind, dice);
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The same bits, or both NaN: which of two NaNs an addition keeps is the processor's choice.
inline bool same_numbers(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](float left, float right) {
           return std::bit_cast<std::uint32_t>(left) == std::bit_cast<std::uint32_t>(right) ||
                  (std::isnan(left) && std::isnan(right));
         });
}

}  // namespace gradring::testing
