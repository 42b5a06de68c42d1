// How float16 and bfloat16 are read and rounded: every one of the 65536 patterns, by every
// instruction set of this CPU. Sums, products and quotients of halves reach all the boundaries of
// rounding: ties, overflow to infinity, denormals and below.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "kernels/half.h"
#include "kernels/table.h"
#include "support/kernels_reference.h"

namespace gradring::kernels::half_test {
namespace {

using reference::Buffer;

constexpr std::size_t kPatterns = 65536;

Buffer buffer_of(const std::vector<std::uint16_t>& halves) {
  Buffer buffer(halves.size() * sizeof(std::uint16_t));
  std::memcpy(buffer.data(), halves.data(), buffer.size());
  return buffer;
}

Buffer all_patterns() {
  std::vector<std::uint16_t> halves(kPatterns);
  for (std::size_t i = 0; i < kPatterns; ++i) halves[i] = static_cast<std::uint16_t>(i);
  return buffer_of(halves);
}

void check_all_tables(const std::vector<Buffer>& sources, const Reduction& reduction) {
  const Buffer expected = reference::reduce(sources, reduction);
  const auto dtype = static_cast<std::size_t>(reduction.dtype);
  const auto op = static_cast<std::size_t>(reduction.op);
  const std::byte* const pointers[] = {sources[0].data(), sources[1].data()};
  for (const Table* table : usable_tables()) {
    Buffer result(expected.size());
    table->left[dtype][op](result.data(), pointers, 2, result.size(), reduction.divisor);
    CAPTURE(table->isa);
    CAPTURE(name(reduction.dtype));
    CAPTURE(name(reduction.op));
    CAPTURE(reduction.divisor);
    REQUIRE(result == expected);
  }
}

TEST_CASE("every half is read and written back as it is, and every NaN as the quiet one") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const Buffer patterns = all_patterns();
    const std::vector<Buffer> sources = {patterns, patterns};
    check_all_tables(sources, {dtype, ReduceOp::kMax, Fold::kLeft, 1});
    const std::uint16_t infinity = dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
    Buffer result(patterns.size());
    const std::byte* const pointers[] = {patterns.data(), patterns.data()};
    reduce(result.data(), pointers, kPatterns, {dtype, ReduceOp::kMax, Fold::kLeft, 1});
    for (std::size_t i = 0; i < kPatterns; ++i) {
      std::uint16_t half;
      std::memcpy(&half, &result[2 * i], sizeof half);
      const bool is_nan = (i & 0x7FFF) > infinity;
      CAPTURE(i);
      REQUIRE(half == (is_nan ? reference::nearest_half(dtype, 0.0 / 0.0) : i));
    }
  }
}

// Halving x + y asks for one bit below the last: ties. So do the neighbours of a tie.
TEST_CASE("every half with partners of all sizes rounds to nearest, ties to even") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
    for (std::uint32_t partner = 0x0001; partner < kPatterns; partner += 0x07F3) {
      std::vector<std::uint16_t> same(kPatterns, static_cast<std::uint16_t>(partner));
      const std::vector<Buffer> sources = {all_patterns(), buffer_of(same)};
      check_all_tables(sources, {dtype, ReduceOp::kSum, Fold::kLeft, 1});
      check_all_tables(sources, {dtype, ReduceOp::kProd, Fold::kLeft, 1});
      check_all_tables(sources, {dtype, ReduceOp::kAvg, Fold::kLeft, 3});
    }
}

// x and its successor, halved, lie exactly between two halves; the smallest ones below them all.
TEST_CASE("the middle between two neighbours goes to the even one") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<std::uint16_t> successors(kPatterns);
    for (std::size_t i = 0; i < kPatterns; ++i) successors[i] = static_cast<std::uint16_t>(i + 1);
    const std::vector<Buffer> sources = {all_patterns(), buffer_of(successors)};
    for (const std::uint32_t divisor : {1u, 2u, 4u, 1024u, 1u << 24})
      check_all_tables(sources, {dtype, ReduceOp::kAvg, Fold::kLeft, divisor});
  }
}

// Every float's upper half with lower halves around the ties of both types.
template <typename Half>
void check_one_at_a_time(DType dtype, std::uint16_t largest) {
  std::size_t wrong = 0;
  for (std::uint32_t upper = 0; upper < kPatterns; ++upper) {
    const auto half = static_cast<std::uint16_t>(upper);
    const float widened = Half::widened(half);
    if ((half & 0x7FFF) <= largest + 1) {
      wrong += static_cast<double>(widened) != reference::value_of_half(dtype, half);
      wrong += Half::rounded(widened) != half || Half::saturated(widened) != half;
    } else {
      wrong += widened == widened;
    }
    for (const std::uint32_t lower :
         {0u, 1u, 0x0FFFu, 0x1000u, 0x7FFFu, 0x8000u, 0x8001u, 0xF000u}) {
      const float value = float_of((upper << 16) | lower);
      const std::uint16_t nearest = reference::nearest_half(dtype, static_cast<double>(value));
      wrong += Half::rounded(value) != nearest;
      const bool overflows = is_finite(value) && (nearest & 0x7FFF) > largest;
      const std::uint16_t sign = nearest & 0x8000;
      if (value == value)
        wrong += Half::saturated(value) != (overflows ? sign | largest : nearest);
      else
        wrong += (Half::saturated(value) & 0x7FFF) != nearest;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a half at a time is read and rounded as by vectors") {
  check_one_at_a_time<Float16>(DType::kFloat16, 0x7BFF);
  check_one_at_a_time<BFloat16>(DType::kBFloat16, 0x7F7F);
}

}  // namespace
}  // namespace gradring::kernels::half_test
