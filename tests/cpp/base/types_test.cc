// DType and ReduceOp: sizes, NumPy's names, and which operator is defined for which type.
#include "base/types.h"

#include <doctest/doctest.h>

#include <set>
#include <string_view>

namespace gradring::testing::types_test {

TEST_CASE("item sizes are those of NumPy") {
  CHECK(item_bytes(DType::kFloat64) == 8);
  CHECK(item_bytes(DType::kFloat32) == 4);
  CHECK(item_bytes(DType::kFloat16) == 2);
  CHECK(item_bytes(DType::kBFloat16) == 2);
  CHECK(item_bytes(DType::kInt8) == 1);
  CHECK(item_bytes(DType::kInt16) == 2);
  CHECK(item_bytes(DType::kInt32) == 4);
  CHECK(item_bytes(DType::kInt64) == 8);
  CHECK(item_bytes(DType::kUInt8) == 1);
  CHECK(item_bytes(DType::kBool) == 1);
}

TEST_CASE("every dtype and operator has a name of its own") {
  std::set<std::string_view> dtypes;
  for (std::size_t i = 0; i < kDTypeCount; ++i) dtypes.insert(name(static_cast<DType>(i)));
  CHECK(dtypes.size() == kDTypeCount);
  CHECK(dtypes.count("unknown dtype") == 0);

  std::set<std::string_view> ops;
  for (std::size_t i = 0; i < kReduceOpCount; ++i) ops.insert(name(static_cast<ReduceOp>(i)));
  CHECK(ops.size() == kReduceOpCount);
  CHECK(ops.count("unknown op") == 0);
}

TEST_CASE("bitwise operators are for integers and bool, averages for numbers") {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CAPTURE(name(dtype));
    const bool is_float = dtype == DType::kFloat64 || dtype == DType::kFloat32 ||
                          dtype == DType::kFloat16 || dtype == DType::kBFloat16;
    for (const auto op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor})
      CHECK(is_defined(dtype, op) == !is_float);
    CHECK(is_defined(dtype, ReduceOp::kAvg) == (dtype != DType::kBool));
    for (const auto op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax})
      CHECK(is_defined(dtype, op));
  }
}

}  // namespace gradring::testing::types_test
