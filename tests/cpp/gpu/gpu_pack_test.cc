// Tensors to a bucket and back: every bit as one element at a time gives it, wherever tensors and
// bucket lie, and nothing else is touched. The kernels run in the block emulator, or on a GPU
// (support/gpu_memory.h).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "gpu/chunks.h"
#include "kernels/codec.h"
#include "support/gpu_memory.h"

namespace gradring::gpu_pack_test {
namespace {

using namespace gpu_test;

const std::vector<std::size_t> kSizes = {0,  1,   2,   3,    5,    7,    8,    9,
                                         31, 255, 257, 1024, 2049, 8192, 8193, 9001};

// Tensors at all alignments, and their places in a bucket with gaps.
template <typename Type>
struct Tensors {
  using Item = typename Type::Item;
  std::vector<std::vector<Item>> values;
  std::vector<Array<Item>> arrays;
  std::vector<std::uint64_t> places;
  std::size_t bucket_count = 0;
  std::optional<Array<gradring_chunk>> table;

  Tensors(const std::vector<std::size_t>& sizes, std::uint64_t seed, bool is_tame = false) {
    std::vector<gpu::Placed> placed;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      values.push_back(random_items<Type>(sizes[i], seed + i, is_tame));
      // The first of those that are long lie on 16 bytes, and in the bucket as well.
      const std::size_t shift = (i + 3) * sizeof(Item) % 16;
      arrays.emplace_back(values[i], shift);
      places.push_back(bucket_count);
      placed.push_back({arrays[i].data(), bucket_count, sizes[i]});
      bucket_count += sizes[i] + (i % 3 == 0 ? 0 : 16 - sizes[i] % 16 + i % 2);
    }
    table.emplace(gpu::cut_pieces(placed, sizeof(Item)));
  }
  gradring_chunks chunks() const {
    return {table->data(), static_cast<std::uint32_t>(table->size())};
  }
};

const float* pointer_of(const std::optional<Array<float>>& scale) {
  return scale ? scale->data() : nullptr;
}
std::optional<Array<float>> on_device(std::optional<float> scale) {
  if (!scale) return std::nullopt;
  return Array<float>(std::vector<float>{*scale});
}

// What pack makes of one tensor's values, with `residual` there and back.
template <typename From, typename To>
std::vector<typename To::Item> packed(const std::vector<typename From::Item>& values, float scale,
                                      bool saturates, std::vector<float>* residual) {
  std::vector<typename To::Item> result(values.size());
  std::vector<float> scaled(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<typename From::Work>(value_of<From>(values[i]));
    const auto by = value * static_cast<typename From::Work>(scale);
    scaled[i] = static_cast<float>(by);
    result[i] = item_of<To>(static_cast<typename To::Work>(by));
  }
  if constexpr (sizeof(typename To::Item) == 2) {
    if (!saturates && residual == nullptr) return result;
    const auto kind = kDTypeOf<To> == DType::kFloat16 ? kernels::CodecKind::kFloat16
                                                      : kernels::CodecKind::kBFloat16;
    kernels::encode({kind}, scaled.data(), residual == nullptr ? nullptr : residual->data(),
                    values.size(), reinterpret_cast<std::byte*>(result.data()));
  }
  return result;
}

// A NaN's sign is the processor's where it is kept (saturated), so only there it does not count.
template <typename To>
bool is_same_packed(std::vector<typename To::Item> a, std::vector<typename To::Item> b,
                    bool keeps_sign) {
  if (keeps_sign)
    for (auto* items : {&a, &b})
      for (auto& item : *items)
        if (std::isnan(value_of<To>(item)))
          item = item_of<To>(std::numeric_limits<float>::quiet_NaN());
  return is_same(a, b);
}

struct PackCase {
  std::optional<float> scale;
  bool saturates = false;
  bool has_residual = false;
};

template <typename From, typename To>
void check_pack(const std::vector<std::size_t>& sizes, const PackCase& test) {
  const Tensors<From> tensors(sizes, 7);
  const auto before = random_items<To>(tensors.bucket_count, 99);
  const auto residual_before = random_items<Float32>(tensors.bucket_count, 98, true);
  const Array<typename To::Item> bucket(before, 3 * sizeof(typename To::Item) % 16);
  const Array<float> residual(residual_before, 12);
  const auto scale = on_device(test.scale);
  const Array<std::uint32_t> nonfinite(std::vector<std::uint32_t>{0});
  gradring_pack call = {};
  call.chunks = tensors.chunks();
  call.from = static_cast<int>(kDTypeOf<From>);
  call.to = static_cast<int>(kDTypeOf<To>);
  call.bucket = bucket.data();
  call.scale = pointer_of(scale);
  call.residual = test.has_residual ? residual.data() : nullptr;
  call.nonfinite = nonfinite.data();
  call.saturates = test.saturates;
  REQUIRE(Device::get().streaming().pack(0, &call, Device::get().stream()) == 0);

  auto expected = before;
  auto residual_expected = residual_before;
  bool is_bad = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto place = static_cast<std::ptrdiff_t>(tensors.places[i]);
    const auto end = place + static_cast<std::ptrdiff_t>(sizes[i]);
    std::vector<float> left(residual_before.begin() + place, residual_before.begin() + end);
    const auto part = packed<From, To>(tensors.values[i], test.scale.value_or(1), test.saturates,
                                       test.has_residual ? &left : nullptr);
    for (const auto item : part) is_bad = is_bad || !std::isfinite(value_of<To>(item));
    std::copy(part.begin(), part.end(), expected.begin() + place);
    std::copy(left.begin(), left.end(), residual_expected.begin() + place);
  }
  CAPTURE(name(kDTypeOf<From>));
  CAPTURE(name(kDTypeOf<To>));
  CAPTURE(test.has_residual);
  CHECK(is_same_packed<To>(bucket.read(), expected, test.saturates || test.has_residual));
  CHECK(is_same(residual.read(), residual_expected));
  CHECK(read_one(nonfinite) == (is_bad ? 1 : 0));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    CHECK(is_same(tensors.arrays[i].read(), tensors.values[i]));
}

template <typename From>
void check_packs_from() {
  for (const auto& scale : {std::optional<float>{}, std::optional<float>{0.3F}}) {
    check_pack<From, Float32>(kSizes, {scale});
    check_pack<From, Float16>(kSizes, {scale});
    check_pack<From, BFloat16>(kSizes, {scale});
    check_pack<From, Float16>(kSizes, {scale, true});
    check_pack<From, BFloat16>(kSizes, {scale, true});
    check_pack<From, Float16>(kSizes, {scale, false, true});
    check_pack<From, BFloat16>(kSizes, {scale, false, true});
  }
}

TEST_CASE("a bucket holds every tensor scaled, cast and with its residual, at every alignment") {
  check_packs_from<Float32>();
  check_packs_from<Float16>();
  check_packs_from<BFloat16>();
  check_pack<Float64, Float64>(kSizes, {0.3F});
}

TEST_CASE("a thousand tensors are packed by one call") {
  std::vector<std::size_t> sizes(1000);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = i * i * 37 % 101;
  check_pack<Float32, BFloat16>(sizes, {1.0F / 3});
}

template <typename From, typename To>
void check_unpack(std::optional<float> factor, bool adds, bool is_skipped = false) {
  const Tensors<To> tensors(kSizes, 17);
  const auto from = random_items<From>(tensors.bucket_count, 5);
  const Array<typename From::Item> bucket(from, sizeof(typename From::Item));
  const auto scale = on_device(factor);
  const Array<std::uint32_t> words(std::vector<std::uint32_t>{0, is_skipped ? 1u : 0u});
  gradring_unpack call = {};
  call.chunks = tensors.chunks();
  call.from = static_cast<int>(kDTypeOf<From>);
  call.to = static_cast<int>(kDTypeOf<To>);
  call.bucket = bucket.data();
  call.scale = pointer_of(scale);
  call.nonfinite = words.data();
  call.skip = words.data() + 1;
  call.adds = adds;
  REQUIRE(Device::get().streaming().unpack(0, &call, Device::get().stream()) == 0);
  CAPTURE(name(kDTypeOf<From>));
  CAPTURE(name(kDTypeOf<To>));
  CAPTURE(adds);
  bool is_bad = false;
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    auto expected = tensors.values[t];
    for (std::size_t i = 0; i < expected.size() && !is_skipped; ++i) {
      using Work = typename From::Work;
      Work value = static_cast<Work>(value_of<From>(from[tensors.places[t] + i])) *
                   static_cast<Work>(factor.value_or(1));
      if (adds) value = static_cast<Work>(value_of<To>(expected[i])) + value;
      expected[i] = item_of<To>(static_cast<typename To::Work>(value));
      is_bad = is_bad || !std::isfinite(value_of<To>(expected[i]));
    }
    CHECK(is_same(tensors.arrays[t].read(), expected));
  }
  CHECK(read_one(words) == (is_bad ? 1 : 0));
  CHECK(is_same(bucket.read(), from));
}

template <typename From>
void check_unpacks_from() {
  for (const bool adds : {false, true}) {
    check_unpack<From, Float32>(std::nullopt, adds);
    check_unpack<From, Float16>(0.7F, adds);
    check_unpack<From, BFloat16>(0.7F, adds);
  }
}

TEST_CASE("every tensor gets its part of the bucket, scaled and cast, or added") {
  check_unpacks_from<Float32>();
  check_unpacks_from<Float16>();
  check_unpacks_from<BFloat16>();
  check_unpack<Float64, Float64>(0.7F, true);
}

TEST_CASE("a word that says so keeps unpack from writing") {
  check_unpack<Float32, Float32>(std::nullopt, false, true);
  check_unpack<BFloat16, Float32>(0.5F, true, true);
}

// Items of any size; Float16's stand for any two bytes.
template <typename Type>
void check_copies(DType dtype) {
  const Tensors<Type> tensors(kSizes, 23);
  const auto before = random_items<Type>(tensors.bucket_count, 3);
  const Array<typename Type::Item> bucket(before);
  gradring_pack call = {};
  call.chunks = tensors.chunks();
  call.from = call.to = static_cast<int>(dtype);
  call.bucket = bucket.data();
  REQUIRE(Device::get().streaming().pack(0, &call, Device::get().stream()) == 0);
  auto expected = before;
  for (std::size_t t = 0; t < kSizes.size(); ++t)
    std::copy(tensors.values[t].begin(), tensors.values[t].end(),
              expected.begin() + static_cast<std::ptrdiff_t>(tensors.places[t]));
  CHECK(is_same(bucket.read(), expected));

  const Tensors<Type> others(kSizes, 29);
  gradring_unpack back = {};
  back.chunks = others.chunks();
  back.from = back.to = static_cast<int>(dtype);
  back.bucket = bucket.data();
  REQUIRE(Device::get().streaming().unpack(0, &back, Device::get().stream()) == 0);
  for (std::size_t t = 0; t < kSizes.size(); ++t)
    CHECK(is_same(others.arrays[t].read(), tensors.values[t]));
}

TEST_CASE("without arithmetic every bit is kept, of any dtype") {
  check_copies<Float16>(DType::kInt16);
  check_copies<BFloat16>(DType::kBFloat16);
  check_copies<Float32>(DType::kFloat32);
  check_copies<Float64>(DType::kInt64);
}

TEST_CASE("pack and unpack refuse what they do not do") {
  const Tensors<Float32> tensors({8}, 1);
  const Array<float> memory(std::vector<float>(8));
  gradring_pack call = {};
  call.chunks = tensors.chunks();
  call.bucket = memory.data();
  call.residual = memory.data();
  call.from = static_cast<int>(DType::kFloat32);
  for (const int to : {static_cast<int>(DType::kFloat32), static_cast<int>(DType::kFloat64),
                       static_cast<int>(DType::kInt32), -1, 1000}) {
    call.to = to;
    CHECK(Device::get().streaming().pack(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  }
  call.chunks.count = 0;
  CHECK(Device::get().streaming().pack(0, &call, nullptr) == 0);
}

}  // namespace
}  // namespace gradring::gpu_pack_test
