// Writer and Reader: structs to bytes and back, little-endian, every length checked before memory
// is taken. Pure.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/config.h"
#include "base/error.h"

namespace gradring::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian; big-endian hosts need swaps");

class Writer {
 public:
  template <typename T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  void put(T value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  // Not inline: GCC 12 warns of overflows that it imagines where several follow on one another.
  [[gnu::noinline]] void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // Cut to limits::kTextBytes: texts are for people.
  void put_text(const std::string& text) {
    const auto length = static_cast<std::uint32_t>(std::min(text.size(), limits::kTextBytes));
    put(length);
    put_bytes(std::as_bytes(std::span(text.data(), length)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Throws ProtocolError on bytes that are too short, too long, or not what they should be.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_integral_v<T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // An enum's values are 0 .. count-1.
  template <typename T>
    requires std::is_enum_v<T>
  T get_enum(std::size_t count) {
    const auto raw = get<std::underlying_type_t<T>>();
    if (static_cast<std::size_t>(raw) >= count)
      throw ProtocolError(
          str("value ", std::int64_t{raw}, " is out of range (", count, " are known)"));
    return static_cast<T>(raw);
  }
  std::uint32_t get_count(std::uint32_t limit) {
    const auto count = get<std::uint32_t>();
    if (count > limit)
      throw ProtocolError(str("a count of ", count, " is over the limit of ", limit));
    return count;
  }
  std::string get_text() {
    const auto text = take(get_count(limits::kTextBytes));
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > rest_.size())
      throw ProtocolError(str("a message ends ", bytes - rest_.size(), " bytes too early"));
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  std::size_t left() const { return rest_.size(); }
  void finish() const {
    if (!rest_.empty()) throw ProtocolError(str("a message is ", rest_.size(), " bytes too long"));
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace gradring::wire
