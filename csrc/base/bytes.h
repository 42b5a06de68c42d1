// Bytes: memory for payloads, not zeroed when it grows: it is about to be written anyway.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace gradring {

template <typename T>
struct Uninitialized : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = Uninitialized<U>;
  };
  template <typename U>
  void construct(U* where) noexcept {
    ::new (static_cast<void*>(where)) U;
  }
  template <typename U, typename... Values>
  void construct(U* where, Values&&... values) {
    ::new (static_cast<void*>(where)) U(std::forward<Values>(values)...);
  }
};

using Bytes = std::vector<std::byte, Uninitialized<std::byte>>;
using Floats = std::vector<float, Uninitialized<float>>;

// So that `more` items find room; the vector grows as if they had come one by one.
template <typename T, typename Allocator>
void reserve_more(std::vector<T, Allocator>& vector, std::size_t more) {
  if (vector.capacity() - vector.size() >= more) return;
  vector.reserve(std::max(vector.size() + more, 2 * vector.capacity()));
}

// Empties a vector and gives its memory back: assigning {} keeps it.
template <typename T, typename Allocator>
void give_back(std::vector<T, Allocator>& vector) {
  std::vector<T, Allocator>().swap(vector);
}

}  // namespace gradring
