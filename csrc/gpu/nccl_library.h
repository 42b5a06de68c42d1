// NCCL as found on this machine: $GRADRING_NCCL_LIB; the copy that torch or CuPy has loaded
// already; the wheel nvidia-nccl-cu*; the system's libnccl.so.2. Opened when first needed, never
// closed. Callable from any thread.
#pragma once

#include <string>
#include <vector>

#include "gpu/nccl_api.h"

namespace gradring::gpu {

struct NcclLibrary {
  nccl::Functions call;
  int version = 0;  // 21809 for 2.18.9.
  std::string path;
};

// Throws DeviceError where there is none, or it is older than 2.18.
const NcclLibrary& nccl_library();

// Where Python knows wheels to lie, best first. Before the first use of nccl_library().
void set_nccl_wheels(std::vector<std::string> paths);

std::string nccl_version_text(int version);  // "2.18.9"

// "unhandled cuda error: Cuda failure 700 'an illegal memory access'": what NCCL says of a result
// and of the last thing that went wrong in `comm` (or anywhere).
std::string nccl_text(const NcclLibrary& library, nccl::Result result, nccl::Comm comm);

}  // namespace gradring::gpu
