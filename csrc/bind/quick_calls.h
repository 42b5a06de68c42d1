// The plain forms of a communicator's calls, for quick.cc: arguments in place or by name,
// contiguous buffers or tensors, everything else at its default. Each returns the call's result (a
// new reference), or nullptr where the method of gradring.Communicator has to look at it; it throws
// what the operation throws. With the GIL, which they let go of while they wait.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "collectives/communicator.h"

namespace gradring::bind::quick {

// Of one call, in the method's order; borrowed, nullptr where none is given.
using Arguments = std::array<PyObject*, 4>;

PyObject* all_reduce(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* reduce_scatter(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* all_gather(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* broadcast(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* reduce(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* gather(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* scatter(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* all_to_all(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* send(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* recv(collectives::Communicator& communicator, const Arguments& arguments);
PyObject* barrier(collectives::Communicator& communicator, const Arguments& arguments);

}  // namespace gradring::bind::quick
