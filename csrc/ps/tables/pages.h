// Memory for tables: runs of zeroed pages, in huge pages where the system has them, and arrays of
// equal items that grow without moving. Owned by the table's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradring::ps {

// Zeroed memory. From 2 MiB on it is aligned to huge pages and asks for them; `begins_small`: not
// yet, so that only what is touched takes memory.
class Pages {
 public:
  // For tests: so many more of this thread's find memory.
  static thread_local std::uint64_t left;

  Pages() = default;
  explicit Pages(std::size_t bytes, bool begins_small = false);  // Throws std::bad_alloc.
  ~Pages();
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Items of a size that is only known at run time, zero at first, numbered from 0. They never move:
// growing takes further blocks.
class BlockArray {
 public:
  explicit BlockArray(std::size_t item_bytes);

  std::byte* at(std::uint64_t index) const {
    return blocks_[index >> shift_].data() + (index & mask_) * item_bytes_;
  }
  // Throws std::bad_alloc; not up to what reserve() was told of.
  void grow_to(std::uint64_t count);
  void reserve(std::uint64_t count) {
    while (room() < count) add_block();
  }
  std::uint64_t room() const { return blocks_.size() * (mask_ + 1); }
  std::size_t bytes() const;  // Of memory, by what has been counted up to.

 private:
  std::size_t block_bytes() const { return (mask_ + 1) * item_bytes_; }
  void add_block();

  std::size_t item_bytes_;
  unsigned shift_;
  std::uint64_t mask_;
  std::uint64_t count_ = 0;
  bool is_small_ = true;  // The first huge page's worth lies in small pages.
  std::vector<Pages> blocks_;
};

}  // namespace gradring::ps
