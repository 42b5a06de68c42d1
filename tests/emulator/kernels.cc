#include "emulator/kernels.h"

#if defined(GRADRING_HAS_KERNELS)
#include "emulator/block.h"
#include "emulator/cuda_emulation.h"
#include "emulator/runtime.h"
#if __has_include("cuda/stream.h")
#include "cuda/stream.h"
#endif
#if __has_include("cuda/codecs.h")
#include "cuda/codecs.h"
#endif
#if __has_include("cuda/rows.h")
#include "cuda/rows.h"
#endif
#endif

namespace gradring::emulated {

KernelTables kernel_tables() {
  KernelTables tables;
#if defined(GRADRING_HAS_KERNELS)
  emulator::set_stream_hook([](void* stream, emulator::Work work) {
    return enqueue(emulator::device, stream, std::move(work));
  });
#if __has_include("cuda/stream.h")
  tables.streaming = &cuda::kStreamKernels;
#endif
#if __has_include("cuda/codecs.h")
  tables.codecs = &cuda::kCodecKernels;
#endif
#if __has_include("cuda/rows.h")
  tables.rows = &cuda::kRowKernels;
#endif
#endif
  return tables;
}

}  // namespace gradring::emulated
