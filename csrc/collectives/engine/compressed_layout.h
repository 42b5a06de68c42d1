// CompressedLayout: how the parts of a compressed sum travel: their sizes, the two collectives that
// carry them, and what stands in front of each. The same for vectors in host memory (compressed.h)
// and on GPUs (device/gpu_compressed.h), so that ranks with either take part in one operation.
// Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/engine/compressed.h"

namespace gradring::collectives {

class CompressedLayout {
 public:
  static constexpr std::size_t kHeaderBytes = 16;

  CompressedLayout(const Compressed& what, Rank rank, Rank ranks)
      : codec_(what.codec),
        count_(what.count),
        is_divided_(what.divisor_at != nullptr),
        rank_(rank),
        ranks_(ranks) {}

  const kernels::Codec& codec() const { return codec_; }
  std::uint64_t count() const { return count_; }
  Rank rank() const { return rank_; }
  Rank ranks() const { return ranks_; }

  // Elements of a part.
  std::uint64_t begin(Rank part) const { return chunk_begin(count_, ranks_, part); }
  std::size_t count(Rank part) const {
    return static_cast<std::size_t>(begin(part + 1) - begin(part));
  }
  // On the wire, with its header.
  std::size_t bytes(Rank part) const {
    return kHeaderBytes + kernels::encoded_bytes(codec_, count(part));
  }
  std::size_t bytes_of_others() const { return bytes_of_all() - bytes(rank_); }
  std::size_t bytes_of_all() const;
  // What the others send of this rank's part.
  std::size_t bytes_received() const { return static_cast<std::size_t>(ranks_ - 1) * bytes(rank_); }

  // Without memory. All parts but this rank's go to their owners; sums go to everybody.
  Operation exchange() const;
  Operation spread() const;

  std::string text() const;  // What this rank has chosen, for people.
  void write_header(std::byte* out) const;
  // Throws Mismatch if `from` has chosen another codec, or does another thing.
  void check_header(const std::byte* in, Rank from) const;

 private:
  kernels::Codec codec_;
  std::uint64_t count_;
  bool is_divided_;
  Rank rank_;
  Rank ranks_;
};

}  // namespace gradring::collectives
