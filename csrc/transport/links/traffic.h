// What this process has sent and received over TCP, all its links together: for metrics. Counted
// beside system calls, which take a thousand times as long.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gradring::transport {

struct Traffic {
  std::atomic<std::uint64_t> sent{0};  // Bytes, with headers. Statistics: relaxed.
  std::atomic<std::uint64_t> received{0};
};

inline Traffic tcp_traffic;

inline void count(std::atomic<std::uint64_t>& total, std::size_t bytes) {
  if (bytes > 0) total.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace gradring::transport
