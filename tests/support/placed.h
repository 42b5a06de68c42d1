// A vector at a chosen distance from 16-byte alignment, with bytes before and behind it that must
// stay as they are. Under the address sanitizer its end is the end of what was allocated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace gradring::testing {

template <typename T>
class Placed {
 public:
  // `offset` in bytes: below 16.
  Placed(const std::vector<T>& values, std::size_t offset)
      : Placed(values.size() * sizeof(T), offset) {
    if (!values.empty()) std::memcpy(memory_.get() + begin_, values.data(), bytes_);
  }
  static Placed of_size(std::size_t count, std::size_t offset) {
    return Placed(count * sizeof(T), offset);
  }

  T* data() { return reinterpret_cast<T*>(memory_.get() + begin_); }
  std::vector<T> values() const {
    std::vector<T> copy(bytes_ / sizeof(T));
    if (!copy.empty()) std::memcpy(copy.data(), memory_.get() + begin_, bytes_);
    return copy;
  }
  bool is_intact() const {
    return std::all_of(memory_.get(), memory_.get() + begin_,
                       [](std::byte byte) { return byte == kGuard; });
  }

 private:
  static constexpr std::byte kGuard{0xC3};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{16}); }
  };

  Placed(std::size_t bytes, std::size_t offset)
      : bytes_(bytes),
        begin_(16 + offset),
        memory_(new (std::align_val_t{16}) std::byte[begin_ + bytes]) {
    std::fill_n(memory_.get(), begin_ + bytes, kGuard);
  }

  std::size_t bytes_;
  std::size_t begin_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace gradring::testing
