// The plugin's own tables, each made in a file of its own and handed out by plugin.cc.
#pragma once

#include "gpu/api.h"

namespace gradring::cuda {

extern const gradring_gpu_runtime kRuntime;

// "invalid argument (cudaErrorInvalidValue)".
const char* error_text(int code);

}  // namespace gradring::cuda
