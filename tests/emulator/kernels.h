// The tables of the kernels that the emulated plugin was built with; null for those it lacks.
#pragma once

#include "gpu/api.h"

namespace gradring::emulated {

struct KernelTables {
  const gradring_stream_kernels* streaming = nullptr;
  const gradring_codec_kernels* codecs = nullptr;
  const gradring_row_kernels* rows = nullptr;
};
// Has launches run in their streams' order.
KernelTables kernel_tables();

}  // namespace gradring::emulated
