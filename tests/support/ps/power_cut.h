// PowerCut: what a loss of power would leave of a folder, in a test. While it lives, this program's
// fsync and fdatasync tell it what they make durable.
#pragma once

#include <string>

namespace gradring::testing {

class PowerCut {
 public:
  // One at a time. `folder` is there, and nothing in it is on the disk yet.
  explicit PowerCut(const std::string& folder);
  ~PowerCut();
  PowerCut(const PowerCut&) = delete;
  PowerCut& operator=(const PowerCut&) = delete;

  // The next fdatasync of a file in the folder fails. As in the kernel, what it should have written
  // counts as clean from then on: later syncs write only what is written to the file again.
  void fail_next_sync();
  // Leaves the names that the last sync of the folder found, each with what the last sync of its
  // file found: nothing that is not on the disk.
  void come();
};

}  // namespace gradring::testing
