// The GPU's int8 codec, run in the block emulator: the bits of kernels/codec.h, whatever the values
// are, wherever they lie and however many there are.
#include "emulator/cuda_emulation.h"
// After CUDA's names.
#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "cuda/codecs.h"
#include "kernels/codec.h"
#include "kernels/portable.h"
#include "support/emulated_orders.h"
#include "support/odd_floats.h"
#include "support/placed.h"

namespace gradring::testing::quantise_kernels_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr kernels::Codec kInt8{kernels::CodecKind::kInt8, 1};
constexpr std::size_t kCounts[] = {0,   1,   3,   127, 128,  129,  255,  256,
                                   257, 383, 511, 513, 2047, 2048, 2049, 5000};

struct Encoded {
  Bytes bytes;
  std::vector<float> residual;
};

Encoded encode_on_cpu(const std::vector<float>& values, const std::vector<float>* residual) {
  Encoded result{Bytes(kernels::encoded_bytes(kInt8, values.size())), {}};
  if (residual != nullptr) result.residual = *residual;
  kernels::encode(kInt8, values.data(), residual == nullptr ? nullptr : result.residual.data(),
                  values.size(), result.bytes.data());
  return result;
}

// Any offset within 16 bytes that floats may have, and one for bytes.
struct Offsets {
  std::size_t values, residual, bytes;
};

Offsets some_offsets(std::mt19937& dice) {
  if (dice() % 3 == 0) return {0, 0, 0};
  return {dice() % 4 * 4, dice() % 4 * 4, dice() % 16};
}

bool has_special(const std::vector<float>& values, const std::vector<float>* residual) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!kernels::is_finite(residual == nullptr ? values[i] : values[i] + (*residual)[i]))
      return true;
  return false;
}

void check_quantise(Floats kind, std::size_t count, bool has_residual, std::mt19937& dice) {
  const auto values = floats(kind, count, static_cast<std::uint32_t>(dice()));
  const auto residual = floats(kind, count, static_cast<std::uint32_t>(dice()));
  const std::vector<float>* const given = has_residual ? &residual : nullptr;
  const Encoded expected = encode_on_cpu(values, given);
  const Offsets at = some_offsets(dice);
  Placed<float> from(values, at.values);
  Placed<float> left(residual, at.residual);
  auto out = Placed<std::byte>::of_size(expected.bytes.size(), at.bytes);
  std::uint32_t nonfinite = 0;
  const gradring_quantise call = {from.data(), has_residual ? left.data() : nullptr, count,
                                  out.data(), &nonfinite};
  REQUIRE(cuda::quantise(0, &call, nullptr) == 0);
  CHECK(same_bits(out.values(), expected.bytes));
  CHECK(same_bits(left.values(), has_residual ? expected.residual : residual));
  CHECK(nonfinite == (has_special(values, given) ? 1 : 0));
  CHECK(out.is_intact());
  CHECK(left.is_intact());
}

TEST_CASE("quantise: the bytes and the residual of the CPU's codec") {
  std::mt19937 dice(1);
  in_every_order([&] {
    for (const std::size_t count : kCounts) {
      CAPTURE(count);
      for (const Floats kind : kAllFloats) {
        CAPTURE(static_cast<int>(kind));
        check_quantise(kind, count, true, dice);
        if (count % 2 == 1) check_quantise(kind, count, false, dice);
      }
    }
  });
}

// Encoded vectors, one of which may be plain floats, and what the CPU makes of them.
struct Sources {
  std::vector<Placed<std::byte>> encoded;
  std::vector<float> plain;
  gradring_codec_sources call = {};

  Sources(std::size_t count, int sources, int plain_at, std::mt19937& dice) {
    plain = floats(Floats::kNormal, count, static_cast<std::uint32_t>(dice()));
    if (!plain.empty()) plain[0] = -0.0F;
    for (int i = 0; i < sources; ++i) {
      const Floats kind = dice() % 4 == 0 ? Floats::kOdd : Floats::kNormal;
      Bytes bytes =
          encode_on_cpu(floats(kind, count, static_cast<std::uint32_t>(dice())), nullptr).bytes;
      if (dice() % 4 == 0)  // From a peer that sends anything.
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice());
      encoded.emplace_back(bytes, dice() % 16);
    }
    for (int i = 0; i < sources; ++i)
      call.at[i] = i == plain_at ? static_cast<const void*>(plain.data())
                                 : encoded[static_cast<std::size_t>(i)].data();
    call.count = sources;
    call.plain = plain_at;
  }

  // In order, onto `sum`; or the first source instead of it.
  std::vector<float> sum(std::vector<float> sum, bool from_first) {
    for (int i = 0; i < call.count; ++i) {
      const bool replaces = from_first && i == 0;
      if (i != call.plain) {
        kernels::decode(kInt8, encoded[static_cast<std::size_t>(i)].data(), sum.size(), sum.data(),
                        !replaces);
        continue;
      }
      for (std::size_t e = 0; e < sum.size(); ++e)
        sum[e] = replaces ? plain[e] : kernels::with_one_nan(sum[e] + plain[e]);
    }
    return sum;
  }
};

void check_dequantise(std::size_t count, int source_count, int start, std::mt19937& dice) {
  const int plain_at =
      dice() % 2 == 0 ? -1 : static_cast<int>(dice() % static_cast<unsigned>(source_count));
  Sources sources(count, source_count, plain_at, dice);
  const auto before = floats(Floats::kOdd, count, static_cast<std::uint32_t>(dice()));
  const bool divides = dice() % 2 == 0;
  float divisor = divides ? 3.0F : 1.0F;
  auto expected = sources.sum(start == GRADRING_SUM_FROM_DST ? before : std::vector<float>(count),
                              start == GRADRING_SUM_FROM_FIRST);
  for (float& element : expected)
    element = kernels::with_one_nan(divides ? element / divisor : element);
  Placed<float> dst(before, some_offsets(dice).values);
  gradring_dequantise call = {sources.call, count, dst.data(), start, divisor, nullptr};
  if (dice() % 2 == 0) {
    call.divisor = 7;
    call.divisor_at = &divisor;
  }
  REQUIRE(cuda::dequantise(0, &call, nullptr) == 0);
  CHECK(same_bits(dst.values(), expected));
  CHECK(dst.is_intact());
}

TEST_CASE("dequantise: the sum in the order of the sources, divided") {
  std::mt19937 dice(2);
  in_every_order([&] {
    for (const std::size_t count : {0, 1, 127, 130, 256, 257, 1000, 2049}) {
      CAPTURE(count);
      for (const int sources : {1, 2, 3, 4, 5, 9}) {
        CAPTURE(sources);
        for (int start = GRADRING_SUM_FROM_FIRST; start <= GRADRING_SUM_FROM_DST; ++start)
          check_dequantise(count, sources, start, dice);
      }
    }
    check_dequantise(300, GRADRING_CODEC_SOURCES, GRADRING_SUM_FROM_ZERO, dice);
  });
}

TEST_CASE("dequantise: one source is what the CPU's decode gives") {
  std::mt19937 dice(3);
  for (const bool adds : {false, true}) {
    Sources sources(777, 1, -1, dice);
    std::vector<float> expected = floats(Floats::kOdd, 777, 5);
    Placed<float> dst(expected, 4);
    kernels::decode(kInt8, sources.encoded[0].data(), 777, expected.data(), adds);
    const gradring_dequantise call = {
        sources.call, 777, dst.data(), adds ? GRADRING_SUM_FROM_DST : GRADRING_SUM_FROM_FIRST, 0,
        nullptr};
    REQUIRE(cuda::dequantise(0, &call, nullptr) == 0);
    CHECK(same_numbers(dst.values(), expected));
  }
}

TEST_CASE("requantise: as if the sum had been stored and encoded") {
  std::mt19937 dice(4);
  in_every_order([&] {
    for (const std::size_t count : {0, 1, 200, 256, 300, 2050}) {
      for (const int source_count : {1, 3, 8}) {
        const int start = dice() % 2 == 0 ? GRADRING_SUM_FROM_FIRST : GRADRING_SUM_FROM_ZERO;
        Sources sources(count, source_count, source_count / 2, dice);
        const auto residual = floats(Floats::kNormal, count, static_cast<std::uint32_t>(dice()));
        const Encoded expected = encode_on_cpu(
            sources.sum(std::vector<float>(count), start == GRADRING_SUM_FROM_FIRST), &residual);
        const Offsets at = some_offsets(dice);
        Placed<float> left(residual, at.residual);
        auto out = Placed<std::byte>::of_size(expected.bytes.size(), at.bytes);
        const gradring_requantise call = {sources.call, count, left.data(),
                                          out.data(),   start, nullptr};
        REQUIRE(cuda::requantise(0, &call, nullptr) == 0);
        CHECK(same_bits(out.values(), expected.bytes));
        CHECK(same_bits(left.values(), expected.residual));
        CHECK(out.is_intact());
      }
    }
  });
}

TEST_CASE("codec kernels: sources that are none, or too many, are refused") {
  gradring_dequantise call = {};
  call.sources.plain = -1;
  call.count = 1;
  CHECK(cuda::dequantise(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  call.sources.count = GRADRING_CODEC_SOURCES + 1;
  CHECK(cuda::dequantise(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  gradring_requantise other = {};
  other.sources = {{nullptr}, 1, -1};
  other.start = GRADRING_SUM_FROM_DST;
  CHECK(cuda::requantise(0, &other, nullptr) == GRADRING_GPU_BAD_CALL);
}

}  // namespace
}  // namespace gradring::testing::quantise_kernels_test
