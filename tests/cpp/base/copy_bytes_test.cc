// Copies are copies wherever the two places lie in their pages, and write nothing else.
#include "base/copy_bytes.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <vector>

#include "base/bytes.h"

namespace gradring::testing::copy_bytes_test {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMostBytes = 3 * kPageBytes;
constexpr std::byte kUntouched{0xee};

struct Places {
  Places() {
    for (std::size_t i = 0; i < source.size(); ++i)
      source[i] = static_cast<std::byte>(i * 131 + i / 251);
  }
  alignas(64) std::array<std::byte, kMostBytes + 2 * kPageBytes> source{};
  alignas(64) std::array<std::byte, kMostBytes + 2 * kPageBytes> target{};

  using Copy = void (*)(void*, const void*, std::size_t);

  // Whether exactly these bytes come.
  bool takes(Copy copy, std::size_t from, std::size_t to, std::size_t bytes) {
    target.fill(kUntouched);
    copy(target.data() + to, source.data() + from, bytes);
    for (std::size_t i = 0; i < target.size(); ++i)
      if (target[i] != (i >= to && i < to + bytes ? source[from + i - to] : kUntouched))
        return false;
    return true;
  }
};

TEST_CASE("bytes are copied, and no others, however far apart the places are in their pages") {
  const auto places = std::make_unique<Places>();
  for (const std::size_t from : {0u, 1u, 24u})
    for (std::size_t apart = 0; apart < 130; apart += apart < 70 ? 1 : 20)
      for (const std::size_t bytes : {2047u, 2048u, 2049u, 9001u})
        REQUIRE(places->takes(&copy_bytes, from, from + apart, bytes));
  for (const std::size_t bytes : {511u, 512u, 2048u, 2049u, 2560u, 9001u})
    REQUIRE(places->takes(&copy_from_core, 24, 7, bytes));
}

TEST_CASE("copies of few bytes and of none are copies too") {
  const auto places = std::make_unique<Places>();
  for (std::size_t bytes = 0; bytes < 200; ++bytes) {
    REQUIRE(places->takes(&copy_bytes, 7, 23, bytes));
    REQUIRE(places->takes(&copy_in_vectors, 5, 3, bytes));
    REQUIRE(places->takes(&copy_from_core, 5, 3, bytes));
  }
  copy_from_core(nullptr, nullptr, 0);
  copy_bytes(nullptr, nullptr, 0);
}

TEST_CASE("what a vector gives back it does not have any more") {
  Bytes bytes(1000);
  std::vector<int> numbers(1000);
  give_back(bytes);
  give_back(numbers);
  CHECK(bytes.capacity() == 0);
  CHECK(numbers.capacity() == 0);
}

}  // namespace
}  // namespace gradring::testing::copy_bytes_test
