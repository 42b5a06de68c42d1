// Packing: what lies apart comes together in C's order, and goes back to where it was.
#include "base/strided.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace gradring::testing::strided_test {
namespace {

// `count` items of `item_bytes`, each with other bytes.
std::vector<std::byte> some_items(std::size_t count, std::size_t item_bytes) {
  std::vector<std::byte> bytes(count * item_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  return bytes;
}

struct Shape {
  std::vector<Axis> axes;  // Strides in items.
  std::size_t first = 0;
};

// Where the items lie, one by one.
std::vector<std::size_t> places(const Shape& shape) {
  std::vector<std::size_t> found{shape.first};
  for (const Axis& axis : shape.axes) {
    std::vector<std::size_t> next;
    for (const std::size_t place : found)
      for (std::size_t i = 0; i < axis.size; ++i)
        next.push_back(
            static_cast<std::size_t>(static_cast<std::ptrdiff_t>(place) +
                                     static_cast<std::ptrdiff_t>(i) * axis.stride_bytes));
    found = next;
  }
  return found;
}

// Of an array of 12000 items.
const std::vector<Shape> kShapes = {
    {{}, 7},                           // A number.
    {{{5, 3}}, 2},                     // A column.
    {{{5, -3}}, 119},                  // Backwards.
    {{{4, 30}, {3, 1}}, 1},            // The first columns of a matrix.
    {{{3, 1}, {4, 30}}, 1},            // And of its transpose.
    {{{2, 60}, {5, 12}, {12, 1}}, 0},  // Contiguous after all.
    {{{2, 60}, {1, 999}, {3, 20}, {2, -5}}, 6},
    {{{2, 60}, {0, 4}}, 0},                  // None.
    {{{100, 1}, {70, 120}}, 3},              // Of several tiles, of which the last ones are part.
    {{{2, 6000}, {50, -1}, {33, 150}}, 60},  // The same, of two planes and backwards.
};

TEST_CASE("an array of any strides is packed in C's order, and unpacked to where it was") {
  for (const std::size_t item : {1, 2, 4, 8, 3, 16})
    for (const Shape& shape : kShapes) {
      CAPTURE(item);
      std::vector<Axis> axes = shape.axes;
      for (Axis& axis : axes) axis.stride_bytes *= static_cast<std::ptrdiff_t>(item);
      std::vector<std::byte> array = some_items(12'000, item);
      const std::vector<std::byte> before = array;
      const auto where = places(shape);
      std::vector<std::byte> memory(where.size() * item, std::byte{0xee});
      const Packed packed{Strided(array.data() + shape.first * item, item, axes), memory.data()};
      packed.pack();
      for (std::size_t i = 0; i < where.size(); ++i)
        CHECK(std::memcmp(&memory[i * item], &before[where[i] * item], item) == 0);
      std::fill(array.begin(), array.end(), std::byte{0});
      packed.unpack();
      std::vector<std::byte> expected(array.size());
      for (const std::size_t place : where)
        std::memcpy(&expected[place * item], &before[place * item], item);
      CHECK(array == expected);
    }
}

}  // namespace
}  // namespace gradring::testing::strided_test
