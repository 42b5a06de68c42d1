// The kernels for x86-64 with AVX2 and F16C. Compiled with those flags: run nothing from here
// before reduce.cc has asked the CPU.
#define GRADRING_VECTOR_BYTES 32
#include "kernels/reduce_body.h"

namespace gradring::kernels {

extern constinit const Table kAvx2Table = make_table("avx2");

}  // namespace gradring::kernels
