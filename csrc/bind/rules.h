// From a Python dict to an update rule: the form that gradring.optim's rules take on their way into
// the core.
#pragma once

#include <pybind11/pybind11.h>

#include "kernels/update.h"

namespace gradring::bind {

// Keys are the names of kernels::Rule's members; "kind" is a name such as "adam", and what is not
// there has its default. Throws InvalidArgument if a key is unknown or the rule is not valid.
kernels::Rule rule_from(const pybind11::dict& fields);

}  // namespace gradring::bind
