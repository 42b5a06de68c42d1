#include "base/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#include "base/copy_bytes.h"
#include "base/prefetch.h"

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

#define GRADRING_CRC_INSTRUCTION __attribute__((target("sse4.2")))
using Register = std::uint64_t;  // As the instruction has it: narrowing would cost one of its own.

bool has_instruction() {
  return __builtin_cpu_supports("sse4.2") != 0;
}
GRADRING_CRC_INSTRUCTION inline Register after_word(Register state, std::uint64_t word) {
  return _mm_crc32_u64(state, word);
}
GRADRING_CRC_INSTRUCTION inline std::uint32_t after_byte(std::uint32_t state, std::byte byte) {
  return _mm_crc32_u8(state, static_cast<std::uint8_t>(byte));
}

#elif defined(__aarch64__)

using Register = std::uint32_t;

// Optional in the first version of the architecture.
bool has_instruction() {
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#if defined(__clang__)
// Before clang 16 arm_acle.h has the functions only where the whole file is compiled for them.
#define GRADRING_CRC_INSTRUCTION __attribute__((target("crc")))
GRADRING_CRC_INSTRUCTION inline Register after_word(Register state, std::uint64_t word) {
  return __builtin_arm_crc32cd(state, word);
}
GRADRING_CRC_INSTRUCTION inline std::uint32_t after_byte(std::uint32_t state, std::byte byte) {
  return __builtin_arm_crc32cb(state, static_cast<std::uint8_t>(byte));
}
#else
#define GRADRING_CRC_INSTRUCTION __attribute__((target("+crc")))
GRADRING_CRC_INSTRUCTION inline Register after_word(Register state, std::uint64_t word) {
  return __crc32cd(state, word);
}
GRADRING_CRC_INSTRUCTION inline std::uint32_t after_byte(std::uint32_t state, std::byte byte) {
  return __crc32cb(state, static_cast<std::uint8_t>(byte));
}
#endif

#endif

#if defined(GRADRING_CRC_INSTRUCTION)

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

GRADRING_CRC_INSTRUCTION std::uint32_t advance_by_instruction(std::uint32_t state,
                                                              const std::byte* bytes,
                                                              std::size_t count) {
  static const ZerosAfter zeros_after;
  for (; count >= 3 * kLane; count -= 3 * kLane, bytes += 3 * kLane) {
    Register a = state;
    Register b = 0;
    Register c = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      a = after_word(a, load(bytes + i));
      b = after_word(b, load(bytes + kLane + i));
      c = after_word(c, load(bytes + 2 * kLane + i));
    }
    const std::uint32_t ab =
        zeros_after(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
    state = zeros_after(ab) ^ static_cast<std::uint32_t>(c);
  }
  Register left = state;
  for (; count >= 8; count -= 8, bytes += 8) left = after_word(left, load(bytes));
  state = static_cast<std::uint32_t>(left);
  for (; count > 0; --count, ++bytes) state = after_byte(state, *bytes);
  return state;
}

#endif

#if defined(__x86_64__)

// x to this power, modulo ours, as an operand of a carry-less product: those of reflected numbers
// come out one place too low.
std::uint64_t power_of_x(std::uint32_t exponent) {
  std::uint32_t result = 1u << 31;  // One.
  std::uint32_t power = 1u << 30;   // x, squared for each binary digit.
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply(result, power);
    power = multiply(power, power);
  }
  return std::uint64_t{result} << 1;
}

// Four registers of 64 bytes are moved over the next 256 bytes at a time: by the products of their
// 64-bit halves with what x^2048 makes of those ("Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ", Intel 2009). What is left stands for all that was before it.
constexpr std::size_t kFold = 256;

// So far ahead of what is summed up: a memory's delay, and still in the first cache then.
constexpr std::size_t kAhead = 1024;

// `count` is a multiple of kFold. kCopies: they are also written to `to`, where a line begins, past
// the caches.
template <bool kCopies>
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2"))) std::uint32_t fold(
    std::uint32_t state, const std::byte* bytes, std::size_t count, std::byte* to) {
  static const std::uint64_t low = power_of_x(8 * kFold + 32);
  static const std::uint64_t high = power_of_x(8 * kFold - 32);
  const auto low_half = static_cast<long long>(low);
  const auto high_half = static_cast<long long>(high);
  const __m512i factors = _mm512_set4_epi64(high_half, low_half, high_half, low_half);
  __m512i sums[4];
  for (std::size_t k = 0; k < 4; ++k) sums[k] = _mm512_loadu_si512(bytes + 64 * k);
  if constexpr (kCopies)
    for (std::size_t k = 0; k < 4; ++k)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 64 * k), sums[k]);
  sums[0] =
      _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (std::size_t at = kFold; at + kFold <= count; at += kFold) {
    if constexpr (kCopies) prefetch_once(bytes + std::min(at + kAhead, count - kFold), kFold);
    for (std::size_t k = 0; k < 4; ++k) {
      const __m512i next = _mm512_loadu_si512(bytes + at + 64 * k);
      if constexpr (kCopies)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64 * k), next);
      sums[k] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sums[k], factors, 0x00),
                                          _mm512_clmulepi64_epi128(sums[k], factors, 0x11), next,
                                          0x96);  // The xor of all three.
    }
  }
  std::array<std::byte, kFold> left;
  for (std::size_t k = 0; k < 4; ++k) _mm512_storeu_si512(left.data() + 64 * k, sums[k]);
  return advance_by_instruction(0, left.data(), left.size());
}

std::uint32_t advance_by_products(std::uint32_t state, const std::byte* bytes, std::size_t count) {
  if (count < 4 * kFold) return advance_by_instruction(state, bytes, count);
  const std::size_t folded = count / kFold * kFold;
  state = fold<false>(state, bytes, folded, nullptr);
  return advance_by_instruction(state, bytes + folded, count - folded);
}

std::uint32_t copy_by_products(std::uint32_t state, const std::byte* bytes, std::size_t count,
                               std::byte* to) {
  const std::size_t head = bytes_before_line(to, count);
  const std::size_t folded = (count - head) / kFold * kFold;
  state = advance_by_instruction(state, bytes, head);
  std::memcpy(to, bytes, head);
  if (folded > 0) state = fold<true>(state, bytes + head, folded, to + head);
  const std::size_t done = head + folded;
  std::memcpy(to + done, bytes + done, count - done);
  return advance_by_instruction(state, bytes + done, count - done);
}

#endif

// While a block is summed up and written, the next one comes. Two fit into any first cache; each is
// three lanes of the instruction.
template <auto kAdvance>
std::uint32_t copy_by_blocks(std::uint32_t state, const std::byte* bytes, std::size_t count,
                             std::byte* to) {
  constexpr std::size_t kBlock = 6144;
  prefetch_once(bytes, std::min(count, kBlock));
  while (count > 0) {
    const std::size_t block = std::min(count, kBlock);
    count -= block;
    prefetch_once(bytes + block, std::min(count, kBlock));
    state = kAdvance(state, bytes, block);
    stream_bytes(to, bytes, block);
    bytes += block;
    to += block;
  }
  return state;
}

template <auto kCopy>
std::uint32_t copied(std::byte* to, std::span<const std::byte> from, std::uint32_t before) {
  const std::uint32_t state = kCopy(~before, from.data(), from.size(), to);
  end_streams();
  return ~state;
}

template <auto kAdvance>
std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t before) {
  return ~kAdvance(~before, bytes.data(), bytes.size());
}

struct Ways {
  std::array<Crc32cWay, 3> all{
      {{&checksum<&advance_by_table>, &copied<&copy_by_blocks<&advance_by_table>>}}};
  std::size_t count = 1;

  Ways() {
#if defined(GRADRING_CRC_INSTRUCTION)
    if (!has_instruction()) return;
    all[count++] = {&checksum<&advance_by_instruction>,
                    &copied<&copy_by_blocks<&advance_by_instruction>>};
#endif
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0)
      all[count++] = {&checksum<&advance_by_products>, &copied<&copy_by_products>};
#endif
  }
};

}  // namespace

std::span<const Crc32cWay> crc32c_ways() {
  static const Ways ways;
  return {ways.all.data(), ways.count};
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  static const Crc32cWay fastest = crc32c_ways().back();
  return fastest.checksum(bytes, before);
}

std::uint32_t crc32c_copy(std::byte* to, std::span<const std::byte> from, std::uint32_t before) {
  static const Crc32cWay fastest = crc32c_ways().back();
  return fastest.copy(to, from, before);
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

}  // namespace gradring
