#include "support/kernels_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace gradring::reference {
namespace {

// A 16-bit format's magnitudes in rising order: magnitude[bits] for all bits up to infinity's, for
// which the value stands that would come next if the exponent went on.
struct HalfFormat {
  int fraction_bits;
  int exponent_bias;
  std::uint16_t infinity;
  std::uint16_t nan;
  std::vector<double> magnitudes;

  HalfFormat(int fraction, int bias, std::uint16_t infinity_bits, std::uint16_t nan_bits)
      : fraction_bits(fraction), exponent_bias(bias), infinity(infinity_bits), nan(nan_bits) {
    for (unsigned bits = 0; bits <= infinity; ++bits) {
      const int exponent = static_cast<int>(bits >> fraction_bits);
      const unsigned fraction_field = bits & ((1u << fraction_bits) - 1);
      const unsigned leading = exponent == 0 ? 0 : 1u << fraction_bits;
      magnitudes.push_back(std::ldexp(static_cast<double>(leading + fraction_field),
                                      std::max(exponent, 1) - exponent_bias - fraction_bits));
    }
  }
};

const HalfFormat& format_of(DType dtype) {
  static const HalfFormat float16(10, 15, 0x7C00, 0x7E00);
  static const HalfFormat bfloat16(7, 127, 0x7F80, 0x7FC0);
  return dtype == DType::kFloat16 ? float16 : bfloat16;
}

template <typename T>
struct Floats {
  using Value = T;
  using Memory = T;
  static T read(T memory) { return memory; }
  static T write(T value) {
    return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
  }
  static T extreme(T a, T b, bool wants_smaller) {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) == wants_smaller ? a : b;
    return (a < b) == wants_smaller ? a : b;
  }
  static T combine(ReduceOp op, T a, T b) {
    switch (op) {
      case ReduceOp::kProd: return a * b;
      case ReduceOp::kMin: return extreme(a, b, true);
      case ReduceOp::kMax: return extreme(a, b, false);
      default: return a + b;
    }
  }
  static T divide(T value, std::uint32_t divisor) { return value / static_cast<T>(divisor); }
};

template <DType kDType>
struct Halves : Floats<float> {
  using Memory = std::uint16_t;
  static float read(std::uint16_t bits) { return static_cast<float>(value_of_half(kDType, bits)); }
  static std::uint16_t write(float value) { return nearest_half(kDType, value); }
};

template <typename T>
struct Integers {
  using Value = T;
  using Memory = T;
  static T read(T memory) { return memory; }
  static T write(T value) { return value; }
  static T combine(ReduceOp op, T a, T b) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    switch (op) {
      case ReduceOp::kProd: return static_cast<T>(x * y);
      case ReduceOp::kMin: return std::min(a, b);
      case ReduceOp::kMax: return std::max(a, b);
      case ReduceOp::kBand: return static_cast<T>(x & y);
      case ReduceOp::kBor: return static_cast<T>(x | y);
      case ReduceOp::kBxor: return static_cast<T>(x ^ y);
      default: return static_cast<T>(x + y);
    }
  }
  static T divide(T value, std::uint32_t divisor) {
    return static_cast<T>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(divisor));
  }
};

// Each value is 0 or 1.
struct Booleans {
  using Value = std::uint8_t;
  using Memory = std::uint8_t;
  static Value read(std::uint8_t memory) { return memory == 0 ? 0 : 1; }
  static std::uint8_t write(Value value) { return value; }
  static Value combine(ReduceOp op, Value a, Value b) {
    switch (op) {
      case ReduceOp::kProd:
      case ReduceOp::kMin:
      case ReduceOp::kBand: return a < b ? a : b;
      case ReduceOp::kBxor: return a == b ? 0 : 1;
      default: return a < b ? b : a;
    }
  }
  static Value divide(Value value, std::uint32_t) { return value; }
};

template <typename Kind>
using Values = std::vector<typename Kind::Value>;

template <typename Kind>
typename Kind::Value fold_left(ReduceOp op, const Values<Kind>& operands) {
  typename Kind::Value folded = operands[0];
  for (std::size_t i = 1; i < operands.size(); ++i) folded = Kind::combine(op, folded, operands[i]);
  return folded;
}

// `level`: the operands; the level's values take their place, from the leaves to the root.
template <typename Kind>
typename Kind::Value fold_tree(ReduceOp op, Values<Kind>& level) {
  std::size_t width = 1;
  while (width * 2 <= level.size()) width *= 2;
  for (std::size_t i = width; i < level.size(); ++i)
    level[i - width] = Kind::combine(op, level[i - width], level[i]);
  for (; width > 1; width /= 2)
    for (std::size_t i = 0; i < width / 2; ++i)
      level[i] = Kind::combine(op, level[2 * i], level[2 * i + 1]);
  return level[0];
}

template <typename Kind>
Buffer reduce_as(const std::vector<Buffer>& sources, const kernels::Reduction& reduction) {
  using Memory = typename Kind::Memory;
  Buffer result(sources[0].size());
  Values<Kind> operands(sources.size());
  for (std::size_t at = 0; at < result.size(); at += sizeof(Memory)) {
    for (std::size_t s = 0; s < sources.size(); ++s) {
      Memory memory;
      std::memcpy(&memory, &sources[s][at], sizeof(Memory));
      operands[s] = Kind::read(memory);
    }
    auto value = reduction.fold == kernels::Fold::kLeft ? fold_left<Kind>(reduction.op, operands)
                                                        : fold_tree<Kind>(reduction.op, operands);
    if (reduction.divisor != 1) value = Kind::divide(value, reduction.divisor);
    const Memory memory = Kind::write(value);
    std::memcpy(&result[at], &memory, sizeof(Memory));
  }
  return result;
}

}  // namespace

double value_of_half(DType dtype, std::uint16_t bits) {
  const HalfFormat& format = format_of(dtype);
  const auto magnitude = static_cast<std::uint16_t>(bits & 0x7FFF);
  if (magnitude > format.infinity) return std::numeric_limits<double>::quiet_NaN();
  const double value = magnitude == format.infinity ? std::numeric_limits<double>::infinity()
                                                    : format.magnitudes[magnitude];
  return bits & 0x8000 ? -value : value;
}

std::uint16_t nearest_half(DType dtype, double value) {
  const HalfFormat& format = format_of(dtype);
  if (std::isnan(value)) return format.nan;
  const auto& magnitudes = format.magnitudes;
  const double magnitude = std::fabs(value);
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude);
  auto bits = static_cast<unsigned>(above - magnitudes.begin());
  if (above == magnitudes.end()) {
    bits = format.infinity;
  } else if (bits > 0) {
    const double up = *above - magnitude;
    const double down = magnitude - *(above - 1);
    if (down < up || (down == up && bits % 2 == 1)) --bits;
  }
  return static_cast<std::uint16_t>(bits | (std::signbit(value) ? 0x8000u : 0u));
}

Buffer reduce(const std::vector<Buffer>& sources, const kernels::Reduction& reduction) {
  switch (reduction.dtype) {
    case DType::kFloat64: return reduce_as<Floats<double>>(sources, reduction);
    case DType::kFloat32: return reduce_as<Floats<float>>(sources, reduction);
    case DType::kFloat16: return reduce_as<Halves<DType::kFloat16>>(sources, reduction);
    case DType::kBFloat16: return reduce_as<Halves<DType::kBFloat16>>(sources, reduction);
    case DType::kInt8: return reduce_as<Integers<std::int8_t>>(sources, reduction);
    case DType::kInt16: return reduce_as<Integers<std::int16_t>>(sources, reduction);
    case DType::kInt32: return reduce_as<Integers<std::int32_t>>(sources, reduction);
    case DType::kInt64: return reduce_as<Integers<std::int64_t>>(sources, reduction);
    case DType::kUInt8: return reduce_as<Integers<std::uint8_t>>(sources, reduction);
    case DType::kBool: return reduce_as<Booleans>(sources, reduction);
  }
  return {};
}

}  // namespace gradring::reference
