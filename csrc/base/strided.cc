#include "base/strided.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "base/prefetch.h"

namespace gradring {
namespace {

// One row, element by element. Sizes that are known when this is compiled are one instruction each.
template <std::size_t kBytes>
void copy_items(std::byte* to, std::ptrdiff_t to_stride, const std::byte* from,
                std::ptrdiff_t from_stride, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, to += to_stride, from += from_stride)
    std::memcpy(to, from, kBytes);
}

void copy_row(std::byte* to, std::ptrdiff_t to_stride, const std::byte* from,
              std::ptrdiff_t from_stride, std::size_t count, std::size_t item_bytes) {
  if (to_stride == from_stride) {  // Both are one behind the other.
    std::memcpy(to, from, count * item_bytes);
    return;
  }
  switch (item_bytes) {
    case 1: return copy_items<1>(to, to_stride, from, from_stride, count);
    case 2: return copy_items<2>(to, to_stride, from, from_stride, count);
    case 4: return copy_items<4>(to, to_stride, from, from_stride, count);
    case 8: return copy_items<8>(to, to_stride, from, from_stride, count);
    default: break;
  }
  for (std::size_t i = 0; i < count; ++i, to += to_stride, from += from_stride)
    std::memcpy(to, from, item_bytes);
}

// Of two axes of which the outer one's neighbours lie closer together, as in a transposed matrix:
// within a tile of so many rows and columns each line that is fetched is used up.
constexpr std::size_t kTile = 32;

bool is_crossed(std::span<const Axis> axes) {
  const std::ptrdiff_t inner = std::abs(axes[1].stride_bytes);
  return inner >= std::ptrdiff_t{kCacheLineBytes} && std::abs(axes[0].stride_bytes) < inner;
}

// Calls `copy(array, packed, count)` for parts of rows of the innermost axis, until all are copied.
template <typename Byte, typename Copy>
void for_each_part(std::byte* array, Byte* packed, std::span<const Axis> axes, std::size_t item,
                   const Copy& copy) {
  if (axes.size() == 1) return copy(array, packed, axes[0].size);
  if (axes.size() == 2 && is_crossed(axes)) {
    const auto [rows, columns] = std::pair(axes[0], axes[1]);
    for (std::size_t row = 0; row < rows.size; row += kTile)
      for (std::size_t column = 0; column < columns.size; column += kTile)
        for (std::size_t r = row; r < std::min(row + kTile, rows.size); ++r)
          copy(array + static_cast<std::ptrdiff_t>(r) * rows.stride_bytes +
                   static_cast<std::ptrdiff_t>(column) * columns.stride_bytes,
               packed + (r * columns.size + column) * item, std::min(kTile, columns.size - column));
    return;
  }
  std::size_t below = item;
  for (const Axis& axis : axes.subspan(1)) below *= axis.size;
  for (std::size_t i = 0; i < axes[0].size; ++i, array += axes[0].stride_bytes, packed += below)
    for_each_part(array, packed, axes.subspan(1), item, copy);
}

}  // namespace

Strided::Strided(std::byte* data, std::size_t item_bytes, const std::vector<Axis>& axes)
    : data_(data), item_bytes_(item_bytes) {
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    const auto whole = static_cast<std::ptrdiff_t>(axis.size) * axis.stride_bytes;
    if (!axes_.empty() && axes_.back().stride_bytes == whole)
      axes_.back() = {axes_.back().size * axis.size, axis.stride_bytes};
    else
      axes_.push_back(axis);
  }
  if (axes_.empty()) axes_.push_back({1, static_cast<std::ptrdiff_t>(item_bytes)});
}

void Strided::pack_into(std::byte* packed) const {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes_);
  const std::ptrdiff_t stride = axes_.back().stride_bytes;
  for_each_part(data_, packed, axes_, item_bytes_,
                [&](const std::byte* from, std::byte* to, std::size_t count) {
                  copy_row(to, item, from, stride, count, item_bytes_);
                });
}

void Strided::unpack_from(const std::byte* packed) const {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes_);
  const std::ptrdiff_t stride = axes_.back().stride_bytes;
  for_each_part(data_, packed, axes_, item_bytes_,
                [&](std::byte* to, const std::byte* from, std::size_t count) {
                  copy_row(to, stride, from, item, count, item_bytes_);
                });
}

}  // namespace gradring
