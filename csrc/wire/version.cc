#include "wire/version.h"

#include <algorithm>
#include <string_view>

namespace gradring::wire {
namespace {

constexpr std::string_view kMagic = "GRAD";
constexpr std::string_view kFirstVersion = "RNG1";  // What followed in it.

constexpr std::array<std::uint8_t, 3> numbers_of(std::string_view release) {
  std::array<std::uint8_t, 3> numbers{};
  std::size_t at = 0;
  for (const char c : release) {
    if (c == '.')
      ++at;
    else
      numbers[at] = static_cast<std::uint8_t>(numbers[at] * 10 + (c - '0'));
  }
  return numbers;
}

bool begins_with(std::span<const std::byte> bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), reinterpret_cast<const char*>(bytes.data()));
}

}  // namespace

Build this_build() {
  constexpr auto kRelease = numbers_of(GRADRING_VERSION);  // Compiles for three numbers only.
  return {kWireVersion, kRelease};
}

BuildBytes encode(const Build& build) {
  BuildBytes bytes{};
  std::copy_n(reinterpret_cast<const std::byte*>(kMagic.data()), kMagic.size(), bytes.begin());
  bytes[4] = std::byte{build.wire};
  for (std::size_t i = 0; i < build.release.size(); ++i) bytes[5 + i] = std::byte{build.release[i]};
  return bytes;
}

std::optional<Build> decode_build(std::span<const std::byte> bytes) {
  if (bytes.size() < BuildBytes{}.size() || !begins_with(bytes, kMagic)) return std::nullopt;
  const auto rest = bytes.subspan(kMagic.size());
  if (begins_with(rest, kFirstVersion)) return Build{1, {}};
  const auto number = [&](std::size_t at) { return std::to_integer<std::uint8_t>(rest[at]); };
  return Build{number(0), {number(1), number(2), number(3)}};
}

std::string describe(const Build& build) {
  const auto& [major, minor, patch] = build.release;
  const std::string release = build.release == Build{}.release
                                  ? "an early Gradring"
                                  : str("Gradring ", +major, '.', +minor, '.', +patch);
  return str("version ", +build.wire, " of the wire (", release, ")");
}

OtherBuild::OtherBuild(const Build& other)
    : OtherBuild(str("it speaks ", describe(other), ", this process ", describe(this_build()),
                     "; install the same Gradring everywhere")) {}

}  // namespace gradring::wire
