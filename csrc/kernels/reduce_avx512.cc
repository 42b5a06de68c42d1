// The kernels for x86-64 with AVX-512 F, BW, DQ and VL. Compiled with those flags: run nothing from
// here before reduce.cc has asked the CPU.
#define GRADRING_VECTOR_BYTES 64
#include "kernels/reduce_body.h"

namespace gradring::kernels {

extern constinit const Table kAvx512Table = make_table("avx512");

}  // namespace gradring::kernels
