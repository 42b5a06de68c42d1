// Rows on the wire: what is decoded and what is left make the input, and one row's size does not
// cost another its precision.
#include "ps/protocol/row_codec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace gradring::testing::row_codec_test {
namespace {

using wire::RowCodec;

constexpr RowCodec kCodecs[] = {RowCodec::kFloat32, RowCodec::kBFloat16, RowCodec::kFloat16,
                                RowCodec::kInt8};

std::vector<float> some_rows(std::size_t rows, std::size_t dim) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(rows * dim);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(normal(random), static_cast<int>(i / dim % 7) * 3 - 9);
  return values;
}

TEST_CASE("decoded rows + residual are the rows") {
  for (const RowCodec codec : kCodecs) {
    for (const std::size_t dim : {1, 7, 64, 256, 300}) {
      CAPTURE(static_cast<int>(codec));
      CAPTURE(dim);
      constexpr std::size_t kRows = 20;
      const auto values = some_rows(kRows, dim);
      std::vector<float> residual(values.size(), 0.0F);
      std::vector<std::byte> encoded(ps::encoded_rows_bytes(codec, dim, kRows));
      ps::encode_rows(codec, dim, kRows, values.data(), residual.data(), encoded.data());
      std::vector<float> decoded(values.size(), -1.0F);
      ps::decode_rows(codec, dim, kRows, encoded.data(), decoded.data());
      for (std::size_t i = 0; i < values.size(); ++i)
        REQUIRE(double{decoded[i]} + double{residual[i]} == double{values[i]});
    }
  }
}

TEST_CASE("every row can be decoded alone, and an int8 row has a scale of its own") {
  constexpr std::size_t kDim = 64;
  const auto values = some_rows(7, kDim);
  for (const RowCodec codec : kCodecs) {
    CAPTURE(static_cast<int>(codec));
    const std::size_t row_bytes = ps::encoded_rows_bytes(codec, kDim, 1);
    REQUIRE(ps::encoded_rows_bytes(codec, kDim, 7) == 7 * row_bytes);
    std::vector<std::byte> encoded(7 * row_bytes);
    ps::encode_rows(codec, kDim, 7, values.data(), nullptr, encoded.data());
    for (std::size_t row = 0; row < 7; ++row) {
      std::vector<float> decoded(kDim);
      ps::decode_rows(codec, kDim, 1, &encoded[row * row_bytes], decoded.data());
      float largest = 0;
      float error = 0;
      for (std::size_t i = 0; i < kDim; ++i) {
        largest = std::max(largest, std::abs(values[row * kDim + i]));
        error = std::max(error, std::abs(values[row * kDim + i] - decoded[i]));
      }
      REQUIRE(error <= largest / 254 * 1.001F);
    }
  }
}

}  // namespace
}  // namespace gradring::testing::row_codec_test
