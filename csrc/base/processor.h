// What is known of this processor, and no instruction says of it.
#pragma once

namespace gradring {

// Whether a line that lies in another core's own caches takes several times as long, to read or to
// write over, as one that has left them for the cache that cores share. So it is on AMD's Zen 4
// (docs/decisions/0016-slots-are-longer-than-a-cache.md), and not on an Intel Cascade Lake
// (docs/decisions/0022-a-little-that-stays-in-the-caches.md). All of Intel's count as the latter,
// whatever was not measured as the former.
bool core_lines_are_slow();

}  // namespace gradring
