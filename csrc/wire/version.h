// Which builds understand each other: those that speak one version of the wire. It is the first
// thing that both ends of a connection tell, in bytes whose layout is the same in all versions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"

namespace gradring::wire {

// Counted up with every change of what processes say to each other: the layout or the meaning of
// bytes, and how many of them an operation sends. tests/cpp/wire/version_test.cc fails where that
// is forgotten. Never 'R', which version 1 has in this place.
inline constexpr std::uint8_t kWireVersion = 7;

struct Build {
  std::uint8_t wire = 0;
  std::array<std::uint8_t, 3> release{};  // Of the package: 0.1.0. Zeros: not told.
  friend bool operator==(const Build&, const Build&) = default;
};
using BuildBytes = std::array<std::byte, 8>;

Build this_build();
BuildBytes encode(const Build& build);
// Nothing: this is not how a Gradring of any version begins.
std::optional<Build> decode_build(std::span<const std::byte> bytes);
// "version 2 of the wire (Gradring 0.1.0)"
std::string describe(const Build& build);

// The other end is of a build that this one does not understand; says what to do.
struct OtherBuild : ProtocolError {
  explicit OtherBuild(const std::string& text) : ProtocolError(text) {}
  explicit OtherBuild(const Build& other);
};

}  // namespace gradring::wire
