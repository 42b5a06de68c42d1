// The update kernels for x86-64 with AVX2 and FMA. Compiled with those flags: run nothing from here
// before update.cc has asked the CPU.
#include "kernels/update_body.h"

namespace gradring::kernels {

extern constinit const UpdateTable kAvx2Updates = make_update_table("avx2");

}  // namespace gradring::kernels
