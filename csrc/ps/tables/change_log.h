// Which rows changed, in order: a ring of the latest changes. Whoever asks for what changed after a
// stamp reads it from there, unless the ring has forgotten. Owned by the table's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradring::ps {

// That `row` got `stamp`. It is over once the row's own stamp is another one.
struct RowChange {
  std::uint64_t stamp = 0;
  std::uint64_t row = 0;
};

class ChangeLog {
 public:
  void append(std::uint64_t stamp, std::uint64_t row) {
    if (count_ - first_ == ring_.size()) {
      if (ring_.size() < kMost)
        grow();
      else
        forget(at(first_++).stamp);
    }
    ring_[count_++ & (ring_.size() - 1)] = {stamp, row};
  }
  // So many that append() finds memory for, whatever there is by then. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    while (count_ - first_ + count > ring_.size() && ring_.size() < kMost) grow();
  }
  // Nothing is known of changes up to `stamp`: rows were loaded.
  void forget(std::uint64_t stamp) { complete_after_ = std::max(complete_after_, stamp); }

  // Every change after this stamp is in the ring.
  std::uint64_t complete_after() const { return complete_after_; }
  // The changes in the ring are first() .. end()-1, with growing stamps.
  std::uint64_t end() const { return count_; }
  const RowChange& at(std::uint64_t number) const { return ring_[number & (ring_.size() - 1)]; }
  // The first change after `stamp`.
  std::uint64_t first_after(std::uint64_t stamp) const;
  std::size_t bytes() const { return ring_.capacity() * sizeof(RowChange); }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 20;  // 16 MiB.

  void grow();

  std::vector<RowChange> ring_;  // Its size is a power of two.
  std::uint64_t first_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t complete_after_ = 0;
};

}  // namespace gradring::ps
