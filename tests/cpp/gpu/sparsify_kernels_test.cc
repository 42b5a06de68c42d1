// The GPU's top-k codec, run in the block emulator: the choice, the bytes and the residual of
// kernels/codec.h; and the variant with a known threshold, which the same decoder reads.
#include "emulator/cuda_emulation.h"
// After CUDA's names.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <vector>

#include "cuda/codecs.h"
#include "kernels/codec.h"
#include "kernels/codec_top.h"
#include "kernels/portable.h"
#include "support/emulated_orders.h"
#include "support/odd_floats.h"
#include "support/placed.h"

namespace gradring::testing::sparsify_kernels_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kCounts[] = {1, 2, 15, 128, 1000, 4096, 4097, 9000};
constexpr double kRatios[] = {1e-9, 0.01, 0.3, 1};

std::size_t some_offset(std::mt19937& dice) {
  return dice() % 2 == 0 ? 0 : dice() % 4 * 4;
}

// Uninitialized, as the caller's may be, and on 16 bytes.
Placed<std::byte> scratch_for(std::size_t count) {
  return Placed<std::byte>::of_size(cuda::sparsify_scratch_bytes(count), 0);
}

void check_sparsify(Floats kind, std::size_t count, double ratio, bool has_residual,
                    std::mt19937& dice) {
  const kernels::Codec codec{kernels::CodecKind::kTopK, ratio};
  const auto values = floats(kind, count, static_cast<std::uint32_t>(dice()));
  const auto residual = floats(kind, count, static_cast<std::uint32_t>(dice()));
  Bytes expected(kernels::encoded_bytes(codec, count));
  std::vector<float> left = residual;
  kernels::encode(codec, values.data(), has_residual ? left.data() : nullptr, count,
                  expected.data());
  Placed<float> from(values, some_offset(dice));
  Placed<float> gpu_left(residual, some_offset(dice));
  auto out = Placed<std::byte>::of_size(expected.size(), dice() % 2 == 0 ? 0 : dice() % 16);
  auto scratch = scratch_for(count);
  const gradring_sparsify call = {from.data(), has_residual ? gpu_left.data() : nullptr,
                                  count,       kernels::kept_count(ratio, count),
                                  out.data(),  scratch.data()};
  REQUIRE(cuda::sparsify(0, &call, nullptr) == 0);
  CHECK(same_bits(out.values(), expected));
  CHECK(same_bits(gpu_left.values(), left));
  CHECK(out.is_intact());
  CHECK(gpu_left.is_intact());
}

TEST_CASE("sparsify: the largest, of equals the first, with the CPU's bytes and residual") {
  std::mt19937 dice(1);
  in_every_order([&] {
    for (const Floats kind : kAllFloats) {
      CAPTURE(static_cast<int>(kind));
      check_sparsify(kind, 4097, kRatios[dice() % 4], dice() % 4 != 0, dice);
    }
    for (const std::size_t count : kCounts) {
      CAPTURE(count);
      check_sparsify(kAllFloats[dice() % 6], count, kRatios[dice() % 4], dice() % 4 != 0, dice);
    }
  });
}

TEST_CASE("sparsify: vectors of more tiles than a device has blocks at once") {
  std::mt19937 dice(2);
  check_sparsify(Floats::kNormal, 150'001, 0.01, true, dice);
  check_sparsify(Floats::kEqual, 120'000, 0.5, true, dice);
}

TEST_CASE("sparsify: what does not fit is refused, nothing is nothing") {
  gradring_sparsify call = {};
  CHECK(cuda::sparsify(0, &call, nullptr) == 0);
  auto scratch = scratch_for(8);
  std::vector<float> values(8);
  call.values = values.data();
  call.scratch = scratch.data();
  call.count = 8;
  CHECK(cuda::sparsify(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);  // Nothing is kept.
  call.kept = 9;
  CHECK(cuda::sparsify(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  call.count = std::uint64_t{GRADRING_SPARSIFY_ELEMENTS} + 1;
  CHECK(cuda::sparsify(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
}

// What `sparsify_above` says it does, one element after the other.
struct Above {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
  std::vector<float> residual;
  std::uint32_t found = 0;

  Above(const std::vector<float>& from, const std::vector<float>* left, float threshold,
        std::size_t capacity)
      : indices(capacity, 0xFFFFFFFFu), values(capacity) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const float v = left == nullptr ? from[i] : kernels::with_one_nan(from[i] + (*left)[i]);
      const bool is_found = !(std::fabs(v) < threshold) || !kernels::is_finite(v);
      const bool is_taken = is_found && found < capacity;
      if (is_taken) {
        indices[found] = static_cast<std::uint32_t>(i);
        values[found] = v;
      }
      found += is_found ? 1 : 0;
      residual.push_back(is_taken || !kernels::is_finite(v) ? 0.0F : v);
    }
  }
  Bytes bytes() const {
    Bytes all(indices.size() * 8);
    if (all.empty()) return all;
    std::memcpy(all.data(), indices.data(), indices.size() * 4);
    std::memcpy(all.data() + indices.size() * 4, values.data(), values.size() * 4);
    return all;
  }
};

void check_above(Floats kind, std::size_t count, float threshold, std::size_t capacity,
                 std::mt19937& dice) {
  const auto values = floats(kind, count, static_cast<std::uint32_t>(dice()));
  const auto residual = floats(kind, count, static_cast<std::uint32_t>(dice()));
  const bool has_residual = dice() % 3 != 0;
  const Above expected(values, has_residual ? &residual : nullptr, threshold, capacity);
  Placed<float> from(values, some_offset(dice));
  Placed<float> left(residual, some_offset(dice));
  auto out = Placed<std::byte>::of_size(capacity * 8, dice() % 16);
  auto scratch = scratch_for(count);
  std::uint32_t kept = 77;
  gradring_sparsify_above call = {};
  call.values = from.data();
  call.residual = has_residual ? left.data() : nullptr;
  call.count = count;
  call.capacity = capacity;
  call.threshold = dice() % 2 == 0 ? threshold : 1e30F;
  call.threshold_at = call.threshold == threshold ? nullptr : &threshold;
  call.out = out.data();
  call.kept_at = &kept;
  call.scratch = scratch.data();
  REQUIRE(cuda::sparsify_above(0, &call, nullptr) == 0);
  CHECK(kept == expected.found);
  CHECK(same_bits(out.values(), expected.bytes()));
  CHECK(same_bits(left.values(), has_residual ? expected.residual : residual));
  // Any decoder reads it.
  std::vector<float> decoded(count);
  kernels::decode_top(capacity, out.data(), count, decoded.data(), false);
  for (std::size_t i = 0; i < std::min<std::size_t>(capacity, expected.found); ++i)
    CHECK(kernels::bits_of(kernels::with_one_nan(decoded[expected.indices[i]])) ==
          kernels::bits_of(kernels::with_one_nan(0 + expected.values[i])));
}

TEST_CASE("sparsify above a threshold: what is found, as far as there is room") {
  std::mt19937 dice(3);
  in_every_order([&] {
    for (const std::size_t count : {0, 1, 130, 4096, 9001}) {
      CAPTURE(count);
      for (const Floats kind : kAllFloats) {
        const float threshold = std::array{0.0F, 0.75F, 4.0F}[dice() % 3];
        const std::size_t capacity = dice() % 3 == 0 ? count : count / 8;
        check_above(kind, count, threshold, capacity, dice);
      }
    }
  });
}

TEST_CASE("desparsify: what the CPU's decode gives, also of bytes that mean nothing") {
  std::mt19937 dice(4);
  in_every_order([&] {
    for (const std::size_t count : {1, 100, 3000}) {
      const kernels::Codec codec{kernels::CodecKind::kTopK, 0.2};
      const std::size_t kept = kernels::kept_count(0.2, count);
      Bytes bytes(kernels::encoded_bytes(codec, count));
      const auto values = floats(Floats::kOdd, count, static_cast<std::uint32_t>(dice()));
      kernels::encode(codec, values.data(), nullptr, count, bytes.data());
      if (dice() % 2 == 0) std::memset(bytes.data(), 0xFF, 4);  // Its index.
      for (const bool adds : {false, true}) {
        std::vector<float> expected = floats(Floats::kOdd, count, 9);
        Placed<float> dst(expected, some_offset(dice));
        kernels::decode(codec, bytes.data(), count, expected.data(), adds);
        Placed<std::byte> from(bytes, dice() % 16);
        const gradring_desparsify call = {from.data(), kept, count, dst.data(), adds ? 1 : 0};
        REQUIRE(cuda::desparsify(0, &call, nullptr) == 0);
        CHECK(same_numbers(dst.values(), expected));
        CHECK(dst.is_intact());
      }
    }
  });
}

}  // namespace
}  // namespace gradring::testing::sparsify_kernels_test
