// What is known of this processor, and no instruction says of it.
#pragma once

namespace gradring {

// Whether a line that lies in another core's own caches takes several times as long, to read or to
// write over, as one that has left them for the cache that cores share. So it is on AMD's Zen 4
// (docs/decisions/0016-slots-are-longer-than-a-cache.md), and not on an Intel Cascade Lake
// (docs/decisions/0022-a-little-that-stays-in-the-caches.md). All of Intel's count as the latter,
// whatever was not measured as the former.
bool core_lines_are_slow();

// Whether its own copy instruction (`rep movsb`, which is what C libraries take from a few KiB on)
// is the fastest copy between cores, out of lines that another core has written and into lines that
// it has read: on AMD's family 26 (Zen 5) it is, on what came before and on Intel's it is not
// (docs/decisions/0025-zen-5-copies-between-cores-by-itself.md).
bool copies_between_cores_by_itself();

}  // namespace gradring
