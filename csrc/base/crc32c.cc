#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gradring {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Reflected.

using Table = std::array<std::uint32_t, 256>;

// tables[k][x]: the register after byte x and k zero bytes; eight bytes are looked up at once.
constexpr std::array<Table, 8> make_byte_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t x = 0; x < 256; ++x) {
    std::uint32_t state = x;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    tables[0][x] = state;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t x = 0; x < 256; ++x)
      tables[k][x] = (tables[k - 1][x] >> 8) ^ tables[0][tables[k - 1][x] & 0xff];
  return tables;
}
constexpr std::array<Table, 8> kByteTables = make_byte_tables();

// Polynomials over bits modulo ours, reflected: the highest bit is the coefficient of x^0.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);  // Times x.
  }
  return product;
}

std::uint64_t load(const std::byte* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

std::uint32_t advance_by_table(std::uint32_t state, const std::byte* bytes, std::size_t count) {
  for (; count >= 8; count -= 8, bytes += 8) {
    const std::uint64_t word = load(bytes) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= kByteTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; count > 0; --count, ++bytes)
    state = (state >> 8) ^ kByteTables[0][(state ^ static_cast<std::uint32_t>(*bytes)) & 0xff];
  return state;
}

#if defined(__x86_64__)

// The instruction takes three cycles but a new one can start in each: three lanes side by side. The
// register is linear in what was before, so that lanes are joined by moving one over the zeros that
// the next one covers.
constexpr std::size_t kLane = 2048;

class ZerosAfter {
 public:
  ZerosAfter() {
    const std::array<std::byte, kLane> zeros{};
    std::array<std::uint32_t, 32> basis{};
    for (std::uint32_t bit = 0; bit < 32; ++bit)
      basis[bit] = advance_by_table(1u << bit, zeros.data(), zeros.size());
    for (std::size_t k = 0; k < 4; ++k)
      for (std::size_t x = 0; x < 256; ++x)
        for (std::size_t bit = 0; bit < 8; ++bit)
          if ((x >> bit & 1) != 0) tables_[k][x] ^= basis[8 * k + bit];
  }
  std::uint32_t operator()(std::uint32_t state) const {
    return tables_[0][state & 0xff] ^ tables_[1][state >> 8 & 0xff] ^
           tables_[2][state >> 16 & 0xff] ^ tables_[3][state >> 24];
  }

 private:
  std::array<Table, 4> tables_{};
};

__attribute__((target("sse4.2"))) std::uint32_t advance_by_instruction(std::uint32_t state,
                                                                       const std::byte* bytes,
                                                                       std::size_t count) {
  static const ZerosAfter zeros_after;
  for (; count >= 3 * kLane; count -= 3 * kLane, bytes += 3 * kLane) {
    std::uint64_t a = state;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      a = _mm_crc32_u64(a, load(bytes + i));
      b = _mm_crc32_u64(b, load(bytes + kLane + i));
      c = _mm_crc32_u64(c, load(bytes + 2 * kLane + i));
    }
    const std::uint32_t ab =
        zeros_after(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    state = zeros_after(ab) ^ static_cast<std::uint32_t>(c);
  }
  std::uint64_t wide = state;
  for (; count >= 8; count -= 8, bytes += 8) wide = _mm_crc32_u64(wide, load(bytes));
  state = static_cast<std::uint32_t>(wide);
  for (; count > 0; --count, ++bytes)
    state = _mm_crc32_u8(state, static_cast<std::uint8_t>(*bytes));
  return state;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~advance_by_instruction(~before, bytes.data(), bytes.size());
#endif
  return crc32c_by_table(bytes, before);
}

// Every further byte multiplies what was before by x^8; the ones that each checksum begins and ends
// with cancel out.
std::uint32_t crc32c_joined(std::uint32_t of_a, std::uint32_t of_b, std::uint64_t bytes_of_b) {
  std::uint32_t power = 1u << 23;  // x^8, squared for each binary digit.
  for (; bytes_of_b != 0; bytes_of_b >>= 1) {
    if ((bytes_of_b & 1) != 0) of_a = multiply(of_a, power);
    power = multiply(power, power);
  }
  return of_a ^ of_b;
}

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~advance_by_table(~before, bytes.data(), bytes.size());
}

}  // namespace gradring
