// Cuts tensors in pieces of one size for the streaming kernels, which give a piece to a block at a
// time. Made on the host once for a bucket's layout, then copied to the device. Pure function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/stream_calls.h"

namespace gradring::gpu {

// A whole tensor, contiguous. Buckets in which every place * item size is a multiple of 16 are
// packed with the widest accesses.
struct Placed {
  void* tensor = nullptr;
  std::uint64_t place = 0;  // In its bucket, in elements.
  std::uint64_t count = 0;
};

inline std::vector<gradring_chunk> cut_pieces(std::span<const Placed> tensors,
                                              std::size_t item_bytes) {
  std::vector<gradring_chunk> chunks;
  for (const Placed& whole : tensors)
    for (std::uint64_t done = 0; done < whole.count; done += GRADRING_CHUNK_ITEMS) {
      const auto count = std::min<std::uint64_t>(GRADRING_CHUNK_ITEMS, whole.count - done);
      chunks.push_back({static_cast<std::byte*>(whole.tensor) + done * item_bytes,
                        whole.place + done, static_cast<std::uint32_t>(count), 0});
    }
  return chunks;
}

}  // namespace gradring::gpu
