// Arrays whose elements do not lie one behind the other, and the memory that stands for them in an
// operation: packed into it before, and unpacked from it after.
#pragma once

#include <cstddef>
#include <vector>

namespace gradring {

struct Axis {
  std::size_t size = 0;
  std::ptrdiff_t stride_bytes = 0;
};

class Strided {
 public:
  // `axes` from the outermost to the innermost. `data` is the element whose indices are all 0.
  Strided(std::byte* data, std::size_t item_bytes, const std::vector<Axis>& axes);

  // All elements, in C's order, to or from item_bytes * the product of the sizes.
  void pack_into(std::byte* packed) const;
  void unpack_from(const std::byte* packed) const;

 private:
  std::byte* data_;
  std::size_t item_bytes_;
  std::vector<Axis> axes_;  // At least one; neighbours that make one longer row are one.
};

// An array and what stands for it. Memory is the caller's, and outlives the operation.
struct Packed {
  Strided array;
  std::byte* memory = nullptr;

  void pack() const { array.pack_into(memory); }
  void unpack() const { array.unpack_from(memory); }
};

// Of one operation: what stands in its input and its output, where these are not the arrays.
struct Packing {
  const Packed* from = nullptr;
  const Packed* to = nullptr;
};

}  // namespace gradring
