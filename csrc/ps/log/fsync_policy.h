// When a log's writes are on the disk itself. Plain values.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"

namespace gradring::ps {

enum class FsyncKind {
  kNone,      // Before an answer the change is with the kernel: it survives the death of the
              // process, kill -9 too, but not that of the machine.
  kInterval,  // The same, and it is on the disk at most so long after.
  kAlways,    // Before an answer the change is on the disk.
};

struct FsyncPolicy {
  FsyncKind kind = FsyncKind::kNone;
  Millis interval{0};  // kInterval.
};

// "none", "always", or milliseconds: "50", "50 ms". Throws InvalidArgument.
FsyncPolicy parse_fsync_policy(std::string_view text);

}  // namespace gradring::ps
