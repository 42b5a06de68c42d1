// Codecs: what is decoded and what is left make the input, and bytes from elsewhere do no harm.
// (tests/python/collectives/test_compression.py has the properties over all values.)
#include "kernels/codec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"

namespace gradring::testing::codec_test {
namespace {

using kernels::Codec;
using kernels::CodecKind;

constexpr Codec kCodecs[] = {{CodecKind::kBFloat16, 1},
                             {CodecKind::kFloat16, 1},
                             {CodecKind::kInt8, 1},
                             {CodecKind::kTopK, 0.01},
                             {CodecKind::kTopK, 1}};

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 20));
  return values;
}

TEST_CASE("codec: decoded + residual is the input, for every count") {
  for (const Codec& codec : kCodecs) {
    CAPTURE(kernels::name(codec.kind));
    for (const std::size_t count : {0, 1, 2, 15, 16, 255, 256, 257, 1023, 5000}) {
      CAPTURE(count);
      const std::vector<float> values = random_values(count, 7);
      std::vector<float> residual(count, 0.0F);
      std::vector<float> decoded(count, -1.0F);
      std::vector<std::byte> encoded(kernels::encoded_bytes(codec, count));
      kernels::encode(codec, values.data(), residual.data(), count, encoded.data());
      kernels::decode(codec, encoded.data(), count, decoded.data(), false);
      std::vector<float> twice = decoded;
      kernels::decode(codec, encoded.data(), count, twice.data(), true);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(double{decoded[i]} + double{residual[i]} == double{values[i]});
        REQUIRE(twice[i] == decoded[i] + decoded[i]);
      }
    }
  }
}

TEST_CASE("codec: the residual of the last vector is part of the next one") {
  for (const Codec& codec : kCodecs) {
    const std::size_t count = 300;
    std::vector<float> residual = random_values(count, 1);
    std::vector<float> sum = random_values(count, 2);
    std::vector<std::byte> one(kernels::encoded_bytes(codec, count));
    std::vector<std::byte> other = one;
    const std::vector<float> values = sum;
    for (std::size_t i = 0; i < count; ++i) sum[i] += residual[i];
    kernels::encode(codec, values.data(), residual.data(), count, one.data());
    kernels::encode(codec, sum.data(), nullptr, count, other.data());
    CHECK((one == other));
  }
}

TEST_CASE("codec: whatever bytes a peer sends, nothing outside the vector is written") {
  std::mt19937 random(3);
  for (const Codec& codec : kCodecs) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::byte> encoded(kernels::encoded_bytes(codec, 500));
      for (std::byte& byte : encoded) byte = static_cast<std::byte>(random());
      std::vector<float> decoded(564, -9);  // Some at both ends belong to somebody else.
      kernels::decode(codec, encoded.data(), 500, decoded.data() + 32, round % 2 == 0);
      CHECK(std::all_of(decoded.begin(), decoded.begin() + 32, [](float x) { return x == -9; }));
      CHECK(std::all_of(decoded.end() - 32, decoded.end(), [](float x) { return x == -9; }));
    }
  }
}

TEST_CASE("codec: a ratio out of range is refused") {
  for (const double ratio : {0.0, -1.0, 1.01, std::nan("")})
    CHECK_THROWS_AS(kernels::encoded_bytes({CodecKind::kTopK, ratio}, 10), InvalidArgument);
}

}  // namespace
}  // namespace gradring::testing::codec_test
