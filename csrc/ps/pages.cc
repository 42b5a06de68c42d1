#include "ps/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace gradring::ps {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Small tables pay for what they touch of one block; large ones have few blocks.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

// Of a multiple of kHugePage, aligned to it: what is mapped too much is given back.
std::byte* map_aligned(std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > start) ::munmap(mapped, aligned - start);
  const std::size_t tail = start + kHugePage - aligned;
  auto* const data = static_cast<std::byte*>(mapped) + (aligned - start);
  if (tail > 0) ::munmap(data + bytes, tail);
  ::madvise(data, bytes, MADV_HUGEPAGE);  // Only advice: without huge pages it is slower.
  return data;
}

}  // namespace

Pages::Pages(std::size_t bytes) : bytes_(bytes) {
  if (bytes >= kHugePage) {
    bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    data_ = map_aligned(bytes_);
  } else {
    data_ = static_cast<std::byte*>(std::calloc(1, std::max<std::size_t>(bytes, 1)));
    if (data_ == nullptr) throw std::bad_alloc();
  }
}

Pages::~Pages() {
  if (bytes_ >= kHugePage) {
    ::munmap(data_, bytes_);
  } else {
    std::free(data_);
  }
}

BlockArray::BlockArray(std::size_t item_bytes)
    : item_bytes_(item_bytes),
      shift_(static_cast<unsigned>(
          std::bit_width(std::max<std::size_t>(kBlockBytes / item_bytes, 1)) - 1)),
      mask_((std::uint64_t{1} << shift_) - 1) {}

void BlockArray::grow_to(std::uint64_t count) {
  while (blocks_.size() * (mask_ + 1) < count) blocks_.emplace_back(block_bytes());
}

}  // namespace gradring::ps
