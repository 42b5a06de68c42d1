// The plain forms of a communicator's calls, for quick.cc: arguments in place or by name,
// contiguous buffers or tensors, a timeout, everything else at its default. Each returns the call's
// result (a new reference), or nullptr where the method of gradring.Communicator has to look at it;
// it throws what the operation throws. With the GIL, which they let go of while they wait.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "collectives/communicator/communicator.h"

namespace gradring::bind::quick {

// Of one call, in the method's order; borrowed, nullptr where none is given.
using Arguments = std::array<PyObject*, 4>;

struct Caller {
  collectives::Communicator& communicator;
  Millis timeout;

  Rank rank() const { return communicator.rank(); }
  Rank world_size() const { return communicator.world_size(); }
};

PyObject* all_reduce(const Caller& caller, const Arguments& arguments);
PyObject* reduce_scatter(const Caller& caller, const Arguments& arguments);
PyObject* all_gather(const Caller& caller, const Arguments& arguments);
PyObject* broadcast(const Caller& caller, const Arguments& arguments);
PyObject* reduce(const Caller& caller, const Arguments& arguments);
PyObject* gather(const Caller& caller, const Arguments& arguments);
PyObject* scatter(const Caller& caller, const Arguments& arguments);
PyObject* all_to_all(const Caller& caller, const Arguments& arguments);
PyObject* send(const Caller& caller, const Arguments& arguments);
PyObject* recv(const Caller& caller, const Arguments& arguments);
PyObject* barrier(const Caller& caller, const Arguments& arguments);

}  // namespace gradring::bind::quick
