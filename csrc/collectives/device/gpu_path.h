// Which way collectives on GPU memory take: through NCCL, staged through host memory, or NCCL
// inside each host and staged between them. A pure function of what all ranks know of each other,
// so that all choose alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace gradring::collectives {

enum class GpuPath : std::uint8_t {
  kAuto = 0,
  kNccl = 1,
  kStaged = 2,
  kNcclInHosts = 3,
};
std::string_view name(GpuPath path);  // "auto", "nccl", "staged", "nccl_in_hosts".

// What one rank tells of itself.
struct GpuFacts {
  std::int32_t device = -1;       // -1: its memory is on no GPU.
  std::string host;               // The same text on ranks of one host.
  std::string bus_id;             // Of the device, on that host.
  std::int32_t nccl_version = 0;  // 23207 for 2.32.7; 0: not loaded.
  std::string nccl_trouble;       // Why not: "libnccl.so.2 was not found".
};

struct GpuChoice {
  GpuPath path = GpuPath::kStaged;
  std::string
      reason;  // For describe() and doctor: "every rank has a GPU of its own and NCCL 2.32".
};

// `ranks`: in rank order. kAuto takes NCCL inside hosts where their NCCLs do not understand each
// other, and else for all; staged where neither can be had, or one rank is alone. Throws
// DeviceError where `wanted` is not kAuto and cannot be had, saying which rank is the reason.
GpuChoice choose_gpu_path(const std::vector<GpuFacts>& ranks, GpuPath wanted = GpuPath::kAuto);

}  // namespace gradring::collectives
