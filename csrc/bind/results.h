// The arrays that results go into where the caller gives none: NumPy's and torch's, as
// gradring/arrays/buffers.py makes them, without its frames. With the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "base/types.h"

namespace gradring::bind {

// Of the library and dtype of `x`, contents undefined: (ranks, *x.shape), x.shape, or flat. Null
// where `x` is neither NumPy's own plain array nor a tensor.
pybind11::object make_gathered(PyObject* x, Rank ranks);
pybind11::object make_like(PyObject* x);
pybind11::object make_flat(PyObject* x, std::uint64_t count);

}  // namespace gradring::bind
