// Writes a shard's snapshot into a file: the shard's thread reads it out into buffers and seals it,
// a slice between requests at the pace of save_pace.h, and whoever calls writes them. Past the page
// cache where the file system can: copying into that, and having it written back, costs more
// processor time than all the rest, which training wants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ps/log/snapshot.h"
#include "ps/server/shard_loop.h"

namespace gradring::ps {

struct SnapshotFile {
  int fd = -1;  // Open for writing, at its beginning; stays the caller's, who syncs and names it.
  std::string path;  // For errors.
};
struct SnapshotWritten {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;         // Of the whole file.
  std::vector<std::byte> front;  // The first piece, with what all tables are.
};

// Blocks until all is written. Throws DeviceError that names the file, Closed if the shard ends,
// and InvalidArgument if its snapshot does, because something was loaded; what is in the file is
// then of no use. The snapshot is the caller's to end.
SnapshotWritten write_snapshot(ShardLoop& loop, const SnapshotHeader& header,
                               const SnapshotFile& file);

}  // namespace gradring::ps
