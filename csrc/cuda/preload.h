// Brings kernels to the current device before they are launched: a driver that loads them lazily
// would do so at the first launch, which a capture may not wait for.
#pragma once

#include "cuda/launch.h"

namespace gradring::cuda {

// 0, or the driver's code of the first that failed. A device that the build has no code for is told
// by that: what is returned here is not to be found again by who asks cudaGetLastError next.
template <typename... Kernels>
int load_kernels(Kernels... kernels) {
  cudaFuncAttributes attributes;
  int error = 0;
  ((error = error != 0 ? error : static_cast<int>(cudaFuncGetAttributes(&attributes, kernels))),
   ...);
  if (error != 0) static_cast<void>(cudaGetLastError());
  return error;
}

}  // namespace gradring::cuda
