// What finds no memory while one of these lives, on this thread: C++ objects, or tables' pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ps/tables/pages.h"

namespace gradring::testing {

// What `new` takes in one piece that is larger, or the nth such piece alone.
class NoHeap {
 public:
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  explicit NoHeap(std::size_t most_bytes, std::uint64_t nth = kAll);
  ~NoHeap();
  NoHeap(const NoHeap&) = delete;
  NoHeap& operator=(const NoHeap&) = delete;

  bool was_felt() const;
};

// Tables grow no further.
class NoPages {
 public:
  NoPages() { ps::Pages::left = 0; }
  ~NoPages() { ps::Pages::left = ~std::uint64_t{0}; }
  NoPages(const NoPages&) = delete;
  NoPages& operator=(const NoPages&) = delete;
};

}  // namespace gradring::testing
