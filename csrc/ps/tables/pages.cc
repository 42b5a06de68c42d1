#include "ps/tables/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace gradring::ps {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallPage = 4096;
// Few blocks make a large table; of its first block a small one takes what it touches, in small
// pages as long as those are less than a huge one.
constexpr std::size_t kBlockBytes = std::size_t{32} << 20;

std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

// What follows is only advice: without huge pages it is slower.
void ask_for_huge_pages(std::byte* data, std::size_t bytes) {
  ::madvise(data, bytes, MADV_HUGEPAGE);
}

// What is in use in small pages so far too, which Linux does from 6.1 on.
void make_huge(const Pages& pages, std::size_t used_bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack.
  ask_for_huge_pages(pages.data(), pages.bytes());
  ::madvise(pages.data(), used_bytes, kCollapse);
}

// Of a multiple of kHugePage, aligned to it: what is mapped too much is given back. It lies as high
// as it can: Linux maps from above down, so the next one adjoins it, and those that were given the
// same advice are one mapping to the kernel, which allows a process 65,530 of them.
std::byte* map_aligned(std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t head = kHugePage - start % kHugePage;
  auto* const data = static_cast<std::byte*>(mapped) + head;
  ::munmap(mapped, head);
  if (head < kHugePage) ::munmap(data + bytes, kHugePage - head);
  return data;
}

}  // namespace

thread_local std::uint64_t Pages::left = ~std::uint64_t{0};

Pages::Pages(std::size_t bytes, bool begins_small) : bytes_(bytes) {
  if (left == 0) throw std::bad_alloc();
  --left;
  if (bytes >= kHugePage) {
    bytes_ = round_up(bytes, kHugePage);
    data_ = map_aligned(bytes_);
    if (!begins_small) ask_for_huge_pages(data_, bytes_);
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

void BlockArray::add_block() {
  blocks_.emplace_back(block_bytes(), blocks_.empty());
}

void BlockArray::grow_to(std::uint64_t count) {
  reserve(count);
  count_ = std::max(count_, count);
  if (is_small_ && count_ * item_bytes_ > kHugePage && block_bytes() > kHugePage) {
    is_small_ = false;
    make_huge(blocks_.front(), kHugePage);
  }
}

std::size_t BlockArray::bytes() const {
  if (count_ == 0) return 0;
  const std::uint64_t before = (count_ - 1) >> shift_;  // Blocks that are full.
  const std::size_t full = before * block_bytes();
  const std::size_t in_last = (count_ - before * (mask_ + 1)) * item_bytes_;
  return full + round_up(in_last, is_small_ ? kSmallPage : kHugePage);
}

}  // namespace gradring::ps
