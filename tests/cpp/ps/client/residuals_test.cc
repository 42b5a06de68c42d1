// Error feedback of rows pushed in fewer bytes.
#include "ps/client/residuals.h"

#include <doctest/doctest.h>

#include <vector>

#include "ps/protocol/row_codec.h"

namespace gradring::testing::residuals_test {
namespace {

using ps::Residuals;
using wire::RowCodec;

TEST_CASE("a row that was never sent has no residual, and others keep theirs apart") {
  Residuals residuals(2);
  residuals.add(0, std::vector<float>{1, 2}.data());
  residuals.add(~std::uint64_t{0}, std::vector<float>{3, 4}.data());
  residuals.add(7, std::vector<float>{5, 6}.data());
  std::vector<float> found(6, -1);
  residuals.take(std::vector<std::uint64_t>{7, 8, 0}, found.data());
  CHECK(found == std::vector<float>{5, 6, 0, 0, 1, 2});
  CHECK(residuals.size() == 3);
}

TEST_CASE("what was taken is not there a second time, and what several leave adds up") {
  Residuals residuals(2);
  const std::vector<std::uint64_t> ids{5};
  std::vector<float> found(2);
  residuals.add(5, std::vector<float>{0.25f, 0.5f}.data());
  residuals.take(ids, found.data());
  CHECK(found == std::vector<float>{0.25f, 0.5f});
  residuals.take(ids, found.data());
  CHECK(found == std::vector<float>{0, 0});
  residuals.add(5, std::vector<float>{1, 2}.data());
  residuals.add(5, std::vector<float>{-4, 8}.data());
  residuals.take(ids, found.data());
  CHECK(found == std::vector<float>{-3, 10});
}

TEST_CASE("what was sent and what is kept add up to what was given") {
  for (const RowCodec codec : {RowCodec::kBFloat16, RowCodec::kFloat16, RowCodec::kInt8}) {
    constexpr std::size_t kDim = 5;
    Residuals residuals(kDim);
    const std::vector<std::uint64_t> ids{3, 9};
    std::vector<float> gradient(2 * kDim);
    std::vector<float> residual(2 * kDim);
    std::vector<float> decoded(2 * kDim);
    std::vector<std::byte> encoded(ps::encoded_rows_bytes(codec, kDim, 2));
    std::vector<double> given(2 * kDim);
    std::vector<double> arrived(2 * kDim);
    for (int push = 0; push < 100; ++push) {
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = 0.001f * static_cast<float>((static_cast<int>(i) * 37 + push * 11) % 29 - 14);
        given[i] += gradient[i];
      }
      residuals.take(ids, residual.data());
      ps::encode_rows(codec, kDim, 2, gradient.data(), residual.data(), encoded.data());
      for (std::size_t row = 0; row < ids.size(); ++row)
        residuals.add(ids[row], residual.data() + row * kDim);
      ps::decode_rows(codec, kDim, 2, encoded.data(), decoded.data());
      for (std::size_t i = 0; i < decoded.size(); ++i) arrived[i] += decoded[i];
    }
    residuals.take(ids, residual.data());
    for (std::size_t i = 0; i < given.size(); ++i)
      CHECK(arrived[i] + residual[i] == doctest::Approx(given[i]).epsilon(1e-4).scale(0.01));
  }
}

}  // namespace
}  // namespace gradring::testing::residuals_test
