// reduce() and copy() against the reference, bit for bit, for every instruction set of this CPU.
// Half-precision rounding has its own file, half_test.cc.
#include "kernels/reduce.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/table.h"
#include "support/kernels_reference.h"

namespace gradring::kernels::kernels_test {
namespace {

using reference::Buffer;

constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,   15,  16,  17,   31,
                                   33, 63, 64, 65, 255, 256, 257, 1000, 4099};
constexpr std::size_t kMaxCount = 4099;
constexpr std::size_t kMaxSources = 9;

// Zeros, ones, infinities, NaNs (quiet, signalling, with payload), denormals, extremes: as the bits
// of a float of so many bits, of which `fraction` belong to the fraction.
std::vector<std::uint64_t> special_floats(unsigned bits, unsigned fraction) {
  const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
  const std::uint64_t infinity = (sign - 1) & ~((std::uint64_t{1} << fraction) - 1);
  const std::uint64_t quiet = std::uint64_t{1} << (fraction - 1);
  const std::uint64_t one = (infinity >> 1) & infinity;
  std::vector<std::uint64_t> values = {0,
                                       1,
                                       2,
                                       quiet,
                                       infinity,
                                       infinity - 1,
                                       infinity + 1,
                                       infinity + quiet,
                                       infinity + quiet + 5,
                                       one,
                                       one + 1,
                                       (std::uint64_t{1} << fraction) - 1,
                                       std::uint64_t{1} << fraction};
  const std::size_t positive = values.size();
  for (std::size_t i = 0; i < positive; ++i) values.push_back(values[i] | sign);
  return values;
}

std::vector<std::uint64_t> special_values(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return special_floats(64, 52);
    case DType::kFloat32: return special_floats(32, 23);
    case DType::kFloat16: return special_floats(16, 10);
    case DType::kBFloat16: return special_floats(16, 7);
    case DType::kBool: return {0, 0, 0, 1, 2, 0x80, 0xFF};
    default: {
      const std::uint64_t lowest = std::uint64_t{1} << (8 * item_bytes(dtype) - 1);
      return {0, 1, 2, lowest, lowest - 1, lowest + 1, ~std::uint64_t{0}};
    }
  }
}

// A third each: special values, any bits, and small numbers whose sums and products stay finite.
Buffer random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  const std::size_t bytes = item_bytes(dtype);
  const std::vector<std::uint64_t> special = special_values(dtype);
  Buffer buffer(count * bytes);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random();
    const double number = static_cast<double>(static_cast<std::int64_t>(bits) >> 40) / 65536.0;
    if (bits % 3 == 0) {
      bits = special[(bits >> 32) % special.size()];
    } else if (bits % 3 == 1 && dtype == DType::kFloat64) {
      std::memcpy(&bits, &number, sizeof number);
    } else if (bits % 3 == 1 && dtype == DType::kFloat32) {
      const auto single = static_cast<float>(number);
      std::memcpy(&bits, &single, sizeof single);
    } else if (bits % 3 == 1 && is_half(dtype)) {
      bits = reference::nearest_half(dtype, number);
    }
    std::memcpy(&buffer[i * bytes], &bits, bytes);
  }
  return buffer;
}

std::vector<Buffer> random_sources(DType dtype, std::size_t source_count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> sources;
  for (std::size_t s = 0; s < source_count; ++s)
    sources.push_back(random_elements(dtype, kMaxCount, random));
  return sources;
}

std::vector<const std::byte*> pointers_to(const std::vector<Buffer>& buffers) {
  std::vector<const std::byte*> pointers;
  for (const Buffer& buffer : buffers) pointers.push_back(buffer.data());
  return pointers;
}

bool same_bytes(const std::byte* a, const std::byte* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

// A buffer that starts `elements` behind a cache line's start, as collectives' slices do.
struct Misaligned {
  Buffer memory;
  std::byte* start;
  Misaligned(const Buffer& content, std::size_t offset) : memory(content.size() + 128 + offset) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    start = memory.data() + (64 - address % 64) % 64 + offset;
    std::memcpy(start, content.data(), content.size());
  }
};

template <typename Use>
void for_each_dtype_and_op(const Use& use) {
  for (std::size_t d = 0; d < kDTypeCount; ++d)
    for (std::size_t o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (is_defined(dtype, op)) use(dtype, op);
    }
}

Buffer reduced(const std::vector<Buffer>& sources, const Reduction& reduction) {
  Buffer result(sources[0].size());
  reduce(result.data(), pointers_to(sources), result.size() / item_bytes(reduction.dtype),
         reduction);
  return result;
}

TEST_CASE(
    "every instruction set folds every dtype, op and number of sources to the reference's "
    "bits, whatever the count") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    const auto all_sources = random_sources(dtype, kMaxSources, 1);
    for (const Fold fold : {Fold::kLeft, Fold::kTree})
      for (std::size_t k = 1; k <= kMaxSources; ++k) {
        const std::vector<Buffer> sources(all_sources.end() - static_cast<std::ptrdiff_t>(k),
                                          all_sources.end());
        const Buffer expected = reference::reduce(sources, {dtype, op, fold, 1});
        const auto pointers = pointers_to(sources);
        for (const Table* table : usable_tables())
          for (const std::size_t count : kCounts) {
            const std::size_t bytes = count * item_bytes(dtype);
            Buffer result(kMaxCount * item_bytes(dtype), std::byte{0xA5});
            const auto& kernels = fold == Fold::kLeft ? table->left : table->tree;
            kernels[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(op)](
                result.data(), pointers.data(), k, bytes, 1);
            CAPTURE(table->isa);
            CAPTURE(name(dtype));
            CAPTURE(name(op));
            CAPTURE(fold == Fold::kTree);
            CAPTURE(k);
            CAPTURE(count);
            REQUIRE(same_bytes(result.data(), expected.data(), bytes));
            REQUIRE((bytes == result.size() || result[bytes] == std::byte{0xA5}));
          }
      }
  });
}

TEST_CASE("a result does not depend on where the buffers start") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    const auto sources = random_sources(dtype, 3, 2);
    const Buffer expected = reference::reduce(sources, {dtype, op, Fold::kLeft, 1});
    const std::size_t item = item_bytes(dtype);
    for (std::size_t start = 0; start < 9; ++start) {
      const Misaligned a(sources[0], start * item);
      const Misaligned b(sources[1], 3 * item);
      const Misaligned c(sources[2], (start * 5 % 7) * item);
      Misaligned dst(Buffer(expected.size()), (start * 3 % 8) * item);
      const std::byte* const pointers[] = {a.start, b.start, c.start};
      reduce(dst.start, pointers, kMaxCount, {dtype, op, Fold::kLeft, 1});
      CAPTURE(name(dtype));
      CAPTURE(name(op));
      CAPTURE(start);
      REQUIRE(same_bytes(dst.start, expected.data(), expected.size()));
    }
  });
}

// More than the contract asks for: NumPy's views into packed records start anywhere.
TEST_CASE("elements may lie at any byte") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    const auto sources = random_sources(dtype, 2, 7);
    const Buffer expected = reference::reduce(sources, {dtype, op, Fold::kLeft, 1});
    for (std::size_t offset = 0; offset < 8; ++offset) {
      const Misaligned a(sources[0], offset);
      const Misaligned b(sources[1], 0);
      Misaligned dst(Buffer(expected.size()), 7 - offset);
      const std::byte* const pointers[] = {a.start, b.start};
      reduce(dst.start, pointers, kMaxCount, {dtype, op, Fold::kLeft, 1});
      CAPTURE(name(dtype));
      CAPTURE(name(op));
      CAPTURE(offset);
      REQUIRE(same_bytes(dst.start, expected.data(), expected.size()));
    }
  });
}

TEST_CASE("an element's bits are the same in the middle of a buffer and at its end") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    const auto sources = random_sources(dtype, 2, 3);
    const Buffer whole = reduced(sources, {dtype, op, Fold::kLeft, 3});
    const std::size_t item = item_bytes(dtype);
    for (std::size_t i = 0; i < 300; ++i) {
      Buffer alone(item);
      const std::byte* const pointers[] = {&sources[0][i * item], &sources[1][i * item]};
      reduce(alone.data(), pointers, 1, {dtype, op, Fold::kLeft, 3});
      CAPTURE(name(dtype));
      CAPTURE(name(op));
      CAPTURE(i);
      REQUIRE(same_bytes(alone.data(), &whole[i * item], item));
    }
  });
}

TEST_CASE("the destination may be any one of the sources") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    for (const Fold fold : {Fold::kLeft, Fold::kTree})
      for (const std::size_t k : {1u, 2u, 3u, 4u, 5u, 8u})
        for (std::size_t target = 0; target < k; ++target) {
          auto sources = random_sources(dtype, k, 4);
          // One source alone is copied, whatever bits it has; its NaNs are not the reference's.
          const Buffer expected = k == 1 && dtype != DType::kBool
                                      ? sources[0]
                                      : reference::reduce(sources, {dtype, op, fold, 1});
          reduce(sources[target].data(), pointers_to(sources), kMaxCount, {dtype, op, fold, 1});
          CAPTURE(name(dtype));
          CAPTURE(name(op));
          CAPTURE(k);
          CAPTURE(target);
          REQUIRE(sources[target] == expected);
        }
  });
}

TEST_CASE("floats are divided and rounded once, integers truncate towards zero") {
  for_each_dtype_and_op([](DType dtype, ReduceOp op) {
    for (const std::size_t k : {1u, 2u, 4u, 5u})
      for (const std::uint32_t divisor : {1u, 2u, 3u, 7u, 8u, 255u, 256u, 1000u, 1u << 24}) {
        if (k == 1 && divisor == 1 && dtype != DType::kBool) continue;
        const auto sources = random_sources(dtype, k, 5);
        for (const Fold fold : {Fold::kLeft, Fold::kTree}) {
          CAPTURE(name(dtype));
          CAPTURE(name(op));
          CAPTURE(k);
          CAPTURE(divisor);
          REQUIRE(reduced(sources, {dtype, op, fold, divisor}) ==
                  reference::reduce(sources, {dtype, op, fold, divisor}));
        }
      }
  });
}

TEST_CASE("every instruction set divides integers alike") {
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (kBaselineTable.divide[d] == nullptr) continue;
    const auto sources = random_sources(dtype, 1, 6);
    for (const std::uint32_t divisor : {2u, 3u, 10u, 65537u, 1u << 24}) {
      const Buffer expected =
          reference::reduce(sources, {dtype, ReduceOp::kAvg, Fold::kLeft, divisor});
      for (const Table* table : usable_tables()) {
        Buffer result = sources[0];
        table->divide[d](result.data(), result.size(), divisor);
        CAPTURE(table->isa);
        CAPTURE(name(dtype));
        CAPTURE(divisor);
        REQUIRE(result == expected);
      }
    }
  }
}

TEST_CASE("min and max pass a NaN on and tell -0 from +0, in either order") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto both = [](ReduceOp op, float a, float b) {
    std::vector<Buffer> sources(2, Buffer(sizeof(float)));
    std::memcpy(sources[0].data(), &a, sizeof a);
    std::memcpy(sources[1].data(), &b, sizeof b);
    float result;
    const Buffer bytes = reduced(sources, {DType::kFloat32, op, Fold::kLeft, 1});
    std::memcpy(&result, bytes.data(), sizeof result);
    return result;
  };
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    CHECK(std::isnan(both(op, nan, 1.0f)));
    CHECK(std::isnan(both(op, 1.0f, nan)));
    CHECK(std::isnan(both(op, -nan, -1.0f)));
  }
  CHECK(std::signbit(both(ReduceOp::kMin, -0.0f, 0.0f)));
  CHECK(std::signbit(both(ReduceOp::kMin, 0.0f, -0.0f)));
  CHECK_FALSE(std::signbit(both(ReduceOp::kMax, -0.0f, 0.0f)));
  CHECK_FALSE(std::signbit(both(ReduceOp::kMax, 0.0f, -0.0f)));
}

TEST_CASE("a tree of many sources keeps its order") {
  for (const std::size_t k : {16u, 31u, 32u, 33u, 100u}) {
    std::mt19937_64 random(k);
    std::vector<Buffer> sources;
    for (std::size_t s = 0; s < k; ++s)
      sources.push_back(random_elements(DType::kFloat32, 37, random));
    CAPTURE(k);
    for (const Fold fold : {Fold::kLeft, Fold::kTree})
      CHECK(reduced(sources, {DType::kFloat32, ReduceOp::kSum, fold, 1}) ==
            reference::reduce(sources, {DType::kFloat32, ReduceOp::kSum, fold, 1}));
  }
}

TEST_CASE("a call that no reduction can mean blames us") {
  Buffer buffer(64);
  const std::byte* const one[] = {buffer.data()};
  CHECK_THROWS_AS(reduce(buffer.data(), {}, 1, {}), InternalError);
  CHECK_THROWS_AS(reduce(buffer.data(), one, 1, {DType::kFloat32, ReduceOp::kBor}), InternalError);
  CHECK_THROWS_AS(reduce(buffer.data(), one, 1, {DType::kBool, ReduceOp::kAvg}), InternalError);
  for (const std::uint32_t divisor : {0u, (1u << 24) + 1})
    CHECK_THROWS_AS(reduce(buffer.data(), one, 1, {.divisor = divisor}), InternalError);
}

TEST_CASE("copies move every byte and no other, through the caches and past them") {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  Copy* const small = copy_for(1, 2);
  Copy* const large = copy_for(kMost, 2);
  CHECK((copy_for(0, 1) == small));
  CHECK((copy_for(kMost / 1024, 1024) == large));
  for (Copy* const moves : {small, large, &kernels::copy})
    for (const std::size_t bytes : {0u, 1u, 62u, 64u, 65u, 127u, 4099u})
      for (const std::size_t start : {0u, 1u, 32u, 63u}) {
        Buffer src(bytes + 64);
        for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 31 >> 3);
        Buffer dst(bytes + 128, std::byte{0xA5});
        moves(dst.data() + start, src.data() + 64 - 1 - start, bytes);
        CAPTURE(bytes);
        CAPTURE(start);
        REQUIRE(same_bytes(dst.data() + start, src.data() + 64 - 1 - start, bytes));
        for (std::size_t i = 0; i < start; ++i) REQUIRE(dst[i] == std::byte{0xA5});
        for (std::size_t i = start + bytes; i < dst.size(); ++i) REQUIRE(dst[i] == std::byte{0xA5});
      }
}

}  // namespace
}  // namespace gradring::kernels::kernels_test
