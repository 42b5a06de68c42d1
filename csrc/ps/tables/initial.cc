#include "ps/tables/initial.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ps/tables/partition.h"

namespace gradring::ps {
namespace {

// The last word of a counter: what is drawn.
enum Stream : std::uint32_t { kRows = 0, kAdmissions = 1, kDense = 2 };

constexpr std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

float unit_float(std::uint32_t word) {  // In [0, 1), in steps of 2^-24.
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

// The natural logarithm of x in (0, 1]. x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m is
// 2 artanh((m-1)/(m+1)), by its series, whose rest is below 1e-14.
double logarithm(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FE0000000000000ull);
  double e = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1022);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m *= 2;
    e -= 1;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 1.0 / 17;
  for (const double divisor : {15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0})
    sum = sum * z + 1 / divisor;
  return e * 0x1.62e42fefa39efp-1 + 2 * s * sum;
}

struct Angle {
  double cosine;
  double sine;
};

// Of 2 pi * word / 2^32: the nearest quarter turn exactly, the rest by Taylor's series up to the
// 14th power of at most pi/4, whose rest is below 1e-13.
Angle angle_of(std::uint32_t word) {
  const std::uint32_t quarter = (word + 0x20000000u) >> 30;
  const auto rest = static_cast<std::int32_t>(word - (quarter << 30));
  const double x = static_cast<double>(rest) * (0x1.921fb54442d18p+0 * 0x1p-30);
  const double z = x * x;
  double sine = 1;
  for (const double divisor : {156.0, 110.0, 72.0, 42.0, 20.0, 6.0}) sine = 1 - sine * z / divisor;
  sine *= x;
  double cosine = 1;
  for (const double divisor : {182.0, 132.0, 90.0, 56.0, 30.0, 12.0, 2.0})
    cosine = 1 - cosine * z / divisor;
  switch (quarter & 3u) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

// Box and Muller's transform of two words to two numbers.
void normal_pair(const Initializer& init, std::uint32_t first, std::uint32_t second, float* out) {
  const double u = (static_cast<double>(first) + 1) * 0x1p-32;  // In (0, 1].
  const double radius = std::sqrt(-2 * logarithm(u));
  const Angle angle = angle_of(second);
  const double mean = double{init.a};
  const double deviation = double{init.b};
  out[0] = static_cast<float>(mean + deviation * (radius * angle.cosine));
  out[1] = static_cast<float>(mean + deviation * (radius * angle.sine));
}

void four_values(const Initializer& init, const PhiloxCounter& words, float (&out)[4]) {
  if (init.kind == InitKind::kUniform) {
    for (std::size_t lane = 0; lane < 4; ++lane)
      out[lane] = init.a + (init.b - init.a) * unit_float(words[lane]);
    return;
  }
  normal_pair(init, words[0], words[1], out);
  normal_pair(init, words[2], words[3], out + 2);
}

}  // namespace

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {high(right) ^ counter[1] ^ key[0], low(right), high(left) ^ counter[3] ^ key[1],
               low(left)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

Draws::Draws(std::uint64_t seed, std::uint64_t table) {
  const std::uint64_t key = mix_id(seed) ^ table;
  key_ = {low(key), high(key)};
}

void Draws::fill_row(const Initializer& init, std::uint64_t id, std::size_t dim, float* out) const {
  if (init.kind == InitKind::kConstant) {
    std::fill_n(out, dim, init.a);
    return;
  }
  for (std::size_t column = 0; column < dim; column += 4) {
    const auto block = static_cast<std::uint32_t>(column / 4);
    float values[4];
    four_values(init, philox({low(id), high(id), block, kRows}, key_), values);
    std::copy_n(values, std::min<std::size_t>(4, dim - column), out + column);
  }
}

void Draws::fill_dense(const Initializer& init, std::uint64_t first, std::size_t count,
                       float* out) const {
  if (init.kind == InitKind::kConstant) {
    std::fill_n(out, count, init.a);
    return;
  }
  for (std::size_t done = 0; done < count;) {
    const std::uint64_t block = (first + done) / 4;
    const std::size_t lane = (first + done) % 4;
    const std::size_t taken = std::min<std::size_t>(4 - lane, count - done);
    float values[4];
    four_values(init, philox({low(block), high(block), 0, kDense}, key_), values);
    std::copy_n(values + lane, taken, out + done);
    done += taken;
  }
}

float Draws::admission(std::uint64_t id, std::uint32_t nth) const {
  return unit_float(philox({low(id), high(id), nth, kAdmissions}, key_)[0]);
}

}  // namespace gradring::ps
