#include "kernels/codec_top.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/portable.h"

namespace gradring::kernels {
namespace {

// Magnitudes by their upper bits: positive floats are ordered like the integers they look like.
constexpr int kBinShift = 16;
constexpr std::size_t kBins = std::size_t{1} << (31 - kBinShift);

std::uint32_t magnitude(float value) {
  return bits_of(value) & kMagnitudeBits;
}

// A NaN's bits are above those of infinity: whatever is not finite comes first.
bool is_larger(const std::vector<float>& v, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t left = magnitude(v[a]);
  const std::uint32_t right = magnitude(v[b]);
  return left != right ? left > right : a < b;
}

using Bins = std::vector<std::uint32_t>;

Bins count_in_bins(const std::vector<float>& v) {
  Bins bins(kBins);
  for (const float value : v) ++bins[magnitude(value) >> kBinShift];
  return bins;
}

// Which of two NaNs an addition keeps is the processor's choice, and the larger NaN comes first: so
// they become the one NaN, if there are any.
void unify_nans(std::vector<float>& v, Bins& bins) {
  const auto has = [](std::uint32_t count) { return count != 0; };
  if (!std::any_of(bins.begin() + (kInfinityBits >> kBinShift), bins.end(), has)) return;
  for (float& value : v) value = with_one_nan(value);
  bins = count_in_bins(v);
}

// The indices of the `kept` largest magnitudes, ascending.
std::vector<std::uint32_t> largest(const std::vector<float>& v, const Bins& bins,
                                   std::size_t kept) {
  std::size_t bin = kBins;
  std::size_t above = 0;
  while (above < kept) above += bins[--bin];
  std::vector<std::uint32_t> chosen;
  std::vector<std::uint32_t> border;  // In the bin where the last one lies.
  for (std::size_t i = 0; i < v.size(); ++i) {
    const std::size_t at = magnitude(v[i]) >> kBinShift;
    if (at > bin) chosen.push_back(static_cast<std::uint32_t>(i));
    if (at == bin) border.push_back(static_cast<std::uint32_t>(i));
  }
  const auto missing = static_cast<std::ptrdiff_t>(kept - chosen.size());
  std::nth_element(border.begin(), border.begin() + missing - 1, border.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return is_larger(v, a, b); });
  chosen.insert(chosen.end(), border.begin(), border.begin() + missing);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

std::size_t kept_count(double ratio, std::size_t count) {
  const auto wanted = static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(count)));
  return std::min(count, std::max<std::size_t>(wanted, 1));
}

// All indices, then all values.
void encode_top(std::size_t kept, const float* values, float* residual, std::size_t count,
                std::byte* out) {
  if (kept == 0) return;
  std::vector<float> v(values, values + count);
  if (residual != nullptr)
    for (std::size_t i = 0; i < count; ++i) v[i] += residual[i];
  Bins bins = count_in_bins(v);
  if (residual != nullptr) unify_nans(v, bins);
  const std::vector<std::uint32_t> chosen = largest(v, bins, kept);
  std::memcpy(out, chosen.data(), kept * sizeof(std::uint32_t));
  std::byte* at = out + kept * sizeof(std::uint32_t);
  for (const std::uint32_t index : chosen) {
    std::memcpy(at, &v[index], sizeof(float));
    at += sizeof(float);
    v[index] = 0;
  }
  if (residual == nullptr) return;
  // More values that are not finite than places: they must not stay for ever.
  for (std::size_t i = 0; i < count; ++i) residual[i] = is_finite(v[i]) ? v[i] : 0.0F;
}

void decode_top(std::size_t kept, const std::byte* from, std::size_t count, float* dst, bool adds) {
  if (!adds) std::fill_n(dst, count, 0.0F);
  const std::byte* values = from + kept * sizeof(std::uint32_t);
  for (std::size_t i = 0; i < kept; ++i) {
    std::uint32_t index;
    float value;
    std::memcpy(&index, from + i * sizeof index, sizeof index);
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    if (index < count) dst[index] += value;
  }
}

}  // namespace gradring::kernels
