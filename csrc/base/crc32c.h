// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of logs and checkpoints. Pure; uses the
// CPU's instructions where there are any (x86-64, ARM).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradring {

// `before` is the checksum of what comes before: crc32c(b, crc32c(a)) is that of a and b together.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// The same of what it copies, once, past the caches: for long arrays that only a disk reads next.
// They do not overlap.
std::uint32_t crc32c_copy(std::byte* to, std::span<const std::byte> from, std::uint32_t before = 0);

// The checksum of a and b together, from those of each: crc32c(b, crc32c(a)) without the bytes.
std::uint32_t crc32c_joined(std::uint32_t of_a, std::uint32_t of_b, std::uint64_t bytes_of_b);

// All ways that this CPU has of doing it, crc32c()'s the last. The first is by table, on any.
struct Crc32cWay {
  std::uint32_t (*checksum)(std::span<const std::byte> bytes, std::uint32_t before);
  std::uint32_t (*copy)(std::byte* to, std::span<const std::byte> from, std::uint32_t before);
};
std::span<const Crc32cWay> crc32c_ways();

}  // namespace gradring
