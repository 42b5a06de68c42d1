// The update kernels for any processor. Also the reference that tests hold the other instruction
// sets to.
#include "kernels/update_body.h"

namespace gradring::kernels {

extern constinit const UpdateTable kBaselineUpdates = make_update_table("baseline");

}  // namespace gradring::kernels
