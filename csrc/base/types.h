// Plain values every room speaks of: ranks, element types, reduction operators. No behaviour beyond
// naming and sizing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradring {

using Rank = std::int32_t;

// The values are part of the wire format (docs/wire.md): append, never renumber.
enum class DType : std::uint8_t {
  kFloat64 = 0,
  kFloat32 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt8 = 8,
  kBool = 9,
};
inline constexpr std::size_t kDTypeCount = 10;

// The values are part of the wire format: append, never renumber.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,
  kProd = 2,
  kMin = 3,
  kMax = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
};
inline constexpr std::size_t kReduceOpCount = 8;

std::size_t item_bytes(DType dtype);
std::string_view name(DType dtype);  // "float32", "bool", ...: NumPy's names.
std::string_view name(ReduceOp op);  // "sum", "band", ...

// avg has no meaning for bool; band, bor and bxor have none for floating point.
bool is_defined(DType dtype, ReduceOp op);

inline bool is_half(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

}  // namespace gradring
