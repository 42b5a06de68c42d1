// Which shard has what. Ids are hashed to a fixed number of partitions, and partitions are dealt to
// shards in blocks, so that the number of servers can change without rehashing rows. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradring::ps {

inline constexpr std::uint32_t kPartitions = 4096;  // Part of the checkpoint format.

// A strong mix (splitmix64's finalizer): neighbouring ids go to different partitions.
inline std::uint64_t mix_id(std::uint64_t id) {
  id ^= id >> 30;
  id *= 0xbf58476d1ce4e5b9ull;
  id ^= id >> 27;
  id *= 0x94d049bb133111ebull;
  return id ^ (id >> 31);
}

inline std::uint32_t partition_of(std::uint64_t id) {
  return static_cast<std::uint32_t>(mix_id(id) >> 52);
}
static_assert(kPartitions == 1u << 12);

// Shard of a partition: blocks of almost equal size. 1 <= shards <= kPartitions.
inline std::uint32_t shard_of_partition(std::uint32_t partition, std::uint32_t shards) {
  return static_cast<std::uint32_t>(std::uint64_t{partition} * shards / kPartitions);
}
inline std::uint32_t shard_of(std::uint64_t id, std::uint32_t shards) {
  return shard_of_partition(partition_of(id), shards);
}

// A dense table's part on one shard: [begin, end) of `count` floats, in whole blocks of 16 floats
// (a cache line) but for the last.
struct DenseRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
inline DenseRange dense_range(std::uint64_t count, std::uint32_t shard, std::uint32_t shards) {
  const std::uint64_t lines = (count + 15) / 16;
  const std::uint64_t begin = lines * shard / shards * 16;
  const std::uint64_t end = lines * (shard + 1) / shards * 16;
  return {begin < count ? begin : count, end < count ? end : count};
}

}  // namespace gradring::ps
