// CRC-32C (Castagnoli, RFC 3720 appendix B.4): the checksum of logs and checkpoints. Pure; uses the
// CPU's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradring {

// `before` is the checksum of what comes before: crc32c(b, crc32c(a)) is that of a and b together.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// The checksum of a and b together, from those of each: crc32c(b, crc32c(a)) without the bytes.
std::uint32_t crc32c_joined(std::uint32_t of_a, std::uint32_t of_b, std::uint64_t bytes_of_b);

// As crc32c() without the instruction, about ten times slower.
std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace gradring
