// Where each rank's part of a vector lies, in bytes, and how parts are cut into pieces. Pure
// values, used by the planners and by the cost model. Both ends of a link compute the same cut from
// the same request, so it never crosses the wire.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collectives/plan/plan.h"

namespace gradring::collectives {

struct Extent {
  std::uint64_t begin_bytes = 0;  // From the start of the whole vector.
  std::uint64_t bytes = 0;

  std::uint64_t end_bytes() const { return begin_bytes + bytes; }
};

// How many pieces a part of this many bytes is cut into so that receiving, reducing and sending
// overlap: up to four of at least 16 KiB, and from 1 MiB on as many as it takes to keep each within
// kPieceBytes. At least one.
Rank pieces_of(std::uint64_t bytes);

class Parts {
 public:
  // The n parts of the vector of `request`: its `counts`, or an even cut of `count` where that list
  // is empty.
  explicit Parts(const Request& request);
  // n parts of `count` elements each: gather and scatter.
  static Parts equal(const Request& request);
  // One part per entry.
  Parts(std::span<const std::uint64_t> counts, std::uint64_t item_bytes);

  Rank size() const { return static_cast<Rank>(begins_.size()) - 1; }
  std::uint64_t bytes() const { return begins_.back() * item_bytes_; }
  std::uint64_t largest_bytes() const;  // Of any part.
  std::uint64_t largest_piece_bytes(Rank columns) const;
  Extent part(Rank index) const;
  // Piece `column` of `columns` of a part. Column j of all parts is a small vector of its own:
  // planners work through a long vector column by column, with the same few pieces of scratch.
  Extent piece(Rank index, Rank column, Rank columns) const;

 private:
  Parts(std::uint64_t item_bytes, std::size_t parts) : item_bytes_(item_bytes) {
    begins_.reserve(parts + 1);
    begins_.push_back(0);
  }

  std::uint64_t item_bytes_;
  std::vector<std::uint64_t> begins_;  // In elements; one more than there are parts.
};

}  // namespace gradring::collectives
