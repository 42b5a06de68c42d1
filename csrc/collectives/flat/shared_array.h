// SharedArray: memory that every rank of a group on one host has mapped: a part for each rank, and
// a page that says how far the reduction at work in it is. An all_reduce whose vectors all lie at
// one place of one SharedArray is done right there (reduce_in_place): nothing is staged, nothing
// copied but the result. Made by Communicator::share_memory; driven under the communicator's drive
// lock; the owner's part is the user's between operations.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/flat/flat_memory.h"
#include "collectives/flat/flat_shape.h"
#include "collectives/flat/flat_side.h"

namespace gradring::collectives {

class SharedArray {
 public:
  static std::size_t memory_bytes(Rank ranks, std::size_t bytes);

  // `memory`: memory_bytes(ranks, bytes) of it, zeroed when it was created. `number`: the same for
  // all ranks, and only for this array.
  SharedArray(transport::SharedMemory memory, Rank rank, Rank ranks, std::size_t bytes,
              std::uint32_t number);

  std::byte* data() const { return part(rank_); }
  std::size_t bytes() const { return bytes_; }
  std::uint32_t number() const { return number_; }
  std::byte* part(Rank rank) const {
    return parts_ + static_cast<std::size_t>(rank) * stride_bytes_;
  }
  bool holds(const std::byte* begin, std::size_t bytes) const;

  // Every rank has written its operands, `offset` bytes into its part, and knows that the others
  // have. Pieces go to whoever asks first, so a rank that gets no processor holds nobody up.
  // Returns when all of it is done.
  void reduce_in_place(FlatSide& side, FlatShape& shape, std::size_t offset, transport::Idle& idle);

  // This rank's call there has ended with an error: another one, which may stand still now with a
  // piece in hand, reads and writes that part of it no more, nor this one theirs. False where the
  // memory that takes cannot be had.
  bool detach(std::size_t offset, std::size_t bytes) const {
    return memory_.detach(data() + offset, bytes);
  }

 private:
  struct Control {
    alignas(kLineBytes) std::atomic<std::uint64_t> claimed;  // round << 32 | pieces given out.
    Counter finished;                                        // Pieces, for ever.
  };
  using Holding = std::atomic<std::uint32_t>;  // 1: this rank has a piece in hand.

  static std::size_t control_bytes(Rank ranks);
  static std::size_t stride_for(std::size_t bytes);
  std::uint32_t claim(std::uint32_t pieces) const;
  Rank holder() const;

  transport::SharedMemory memory_;
  Rank rank_;
  Rank ranks_;
  std::size_t bytes_;
  std::size_t stride_bytes_;
  std::uint32_t number_;
  Control* control_;
  Holding* holding_;
  std::byte* parts_;
  // Of this array, the same on all ranks: the communicator's own number would be too far from that
  // of the last use after 2^31 operations elsewhere.
  std::uint32_t round_ = 0;
  std::uint32_t finished_ = 0;  // Pieces of all operations so far.
};

// Where a vector lies in a SharedArray; as a post carries it.
struct SharedPlace {
  std::uint64_t number_plus_one = 0;  // 0: in none.
  std::uint64_t offset = 0;
  friend bool operator==(const SharedPlace&, const SharedPlace&) = default;
};

// The arrays of one communicator that this rank still has.
class SharedArrays {
 public:
  struct Found {
    std::shared_ptr<SharedArray> array;
    SharedPlace place;
  };

  // Numbers are given in the order of creation, which is the same on every rank.
  std::uint32_t next_number() { return next_number_++; }
  void add(const std::shared_ptr<SharedArray>& array);
  Found find(const std::byte* begin, std::size_t bytes) const;

 private:
  std::vector<std::weak_ptr<SharedArray>> arrays_;
  std::uint32_t next_number_ = 0;
};

}  // namespace gradring::collectives
