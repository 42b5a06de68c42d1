// The kernels for any processor: 16-byte vectors and nothing that the compiler's default target
// does not have. Also the reference that tests hold the other instruction sets to.
#define GRADRING_VECTOR_BYTES 16
#include "kernels/reduce_body.h"

namespace gradring::kernels {

extern constinit const Table kBaselineTable = make_table("baseline");

}  // namespace gradring::kernels
