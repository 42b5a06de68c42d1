#include "bind/results.h"

#include <pybind11/numpy.h>

#include <vector>

#include "bind/tensors.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using Shape = std::vector<py::ssize_t>;

// Classes made from it may be more than their memory.
bool is_plain_array(PyObject* x) {
  return Py_TYPE(x) == py::detail::npy_api::get().PyArray_Type_;
}

bool is_one_of_theirs(PyObject* x) {
  return is_plain_array(x) || find_tensor(x);
}

// What is given, and then the sizes of `x`.
Shape with_shape_of(PyObject* x, Shape shape) {
  for (const py::handle size : py::handle(x).attr("shape")) shape.push_back(size.cast<long long>());
  return shape;
}

py::object make(PyObject* x, const Shape& shape) {
  if (is_plain_array(x)) return py::array(py::reinterpret_borrow<py::array>(x).dtype(), shape);
  return py::handle(x).attr("new_empty")(py::cast(shape));
}

}  // namespace

py::object make_gathered(PyObject* x, Rank ranks) {
  if (!is_one_of_theirs(x)) return {};
  return make(x, with_shape_of(x, {ranks}));
}

py::object make_like(PyObject* x) {
  if (!is_one_of_theirs(x)) return {};
  return make(x, with_shape_of(x, {}));
}

py::object make_flat(PyObject* x, std::uint64_t count) {
  if (!is_one_of_theirs(x)) return {};
  return make(x, {static_cast<py::ssize_t>(count)});
}

}  // namespace gradring::bind
