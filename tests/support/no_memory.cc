#include "support/no_memory.h"

#include <cstdlib>
#include <limits>
#include <new>

namespace gradring::testing {
namespace {

struct Shortage {
  std::size_t most_bytes = std::numeric_limits<std::size_t>::max();
  std::uint64_t nth = NoHeap::kAll;
  std::uint64_t larger = 0;  // Than most_bytes, so far.
  bool was_felt = false;
};
thread_local Shortage shortage;

bool finds_memory(std::size_t bytes) {
  if (bytes <= shortage.most_bytes) return true;
  const std::uint64_t number = shortage.larger++;
  if (shortage.nth != NoHeap::kAll && shortage.nth != number) return true;
  shortage.was_felt = true;
  return false;
}

}  // namespace

NoHeap::NoHeap(std::size_t most_bytes, std::uint64_t nth) {
  shortage = {.most_bytes = most_bytes, .nth = nth};
}
NoHeap::~NoHeap() {
  shortage = {};
}
bool NoHeap::was_felt() const {
  return shortage.was_felt;
}

}  // namespace gradring::testing

// A sanitizer's own one keeps its books: of how memory was taken, and is given back.
void* operator new(std::size_t bytes) {
  if (!gradring::testing::finds_memory(bytes)) throw std::bad_alloc();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  void* const memory = ::operator new(bytes, std::nothrow);
#else
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
#endif
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
