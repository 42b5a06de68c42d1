// The arithmetic of the int8 codec (codec.h), shared by the CPU's loops (codec.cc) and the GPU's
// kernels: 256 elements share one scale. Pure functions.
#pragma once

#include "kernels/portable.h"

namespace gradring::kernels {

inline constexpr std::size_t kQuantiseBlock = 256;

// For the largest magnitude of a block, given by its bits: such that 127 times the scale is at most
// that, so no decoded value can overflow. 0 for a block that is too small to be scaled: it stays in
// the residual. A NaN for one that is not finite. Only what is greater than 0 has codes to work
// out; all others are 0.
GRADRING_HD float scale_for(std::uint32_t largest) {
  if (largest >= kInfinityBits) return float_of(kNanBits);
  const float value = float_of(largest);
  if (value < 0x1p-100F) return 0;
  const float scale = value / 127.0F;
  return scale * 127.0F > value ? float_of(bits_of(scale) - 1) : scale;  // The next smaller one.
}

// -127 to 127. Divided, not multiplied by an inverse: a quotient that is rounded once lies below
// 0.5 when its value lies below half the scale, and then what is left of it is exact (Sterbenz).
GRADRING_HD std::int32_t code_of(float value, float scale) {
  constexpr float kRounder = 0x1.8p23F;  // Its last place is 1: adding it rounds to nearest even.
  return static_cast<std::int32_t>(bits_of(value / scale + kRounder) - bits_of(kRounder));
}

GRADRING_HD float decoded(std::int32_t code, float scale) {
  return static_cast<float>(code) * scale;
}

// Of a scale that came from elsewhere: what is no number makes its block NaNs.
GRADRING_HD float trusted_scale(float scale) {
  return is_finite(scale) ? scale : float_of(kNanBits);
}

}  // namespace gradring::kernels
