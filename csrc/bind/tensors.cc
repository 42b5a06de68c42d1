#include "bind/tensors.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bind/module.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

// Written once, by learn_torch(), and read with the GIL. Never freed: the interpreter may be gone
// before this is.
struct Torch {
  std::vector<PyTypeObject*> types;
  std::vector<std::pair<PyObject*, DType>> dtypes;
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_nested = PyUnicode_InternFromString("is_nested");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
};

Torch* torch = nullptr;

// Both return nothing and leave a Python error where there is one.
py::object attribute(PyObject* object, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
}
py::object call(PyObject* object, PyObject* method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object, method));
}

std::optional<unsigned long long> number(PyObject* object, PyObject* method) {
  const py::object value = call(object, method);
  if (!value || !PyLong_CheckExact(value.ptr())) return std::nullopt;
  const unsigned long long found = PyLong_AsUnsignedLongLong(value.ptr());
  if (PyErr_Occurred() != nullptr) return std::nullopt;
  return found;
}

std::optional<DType> dtype_of(PyObject* object) {
  const auto dtype = attribute(object, torch->dtype);
  for (const auto& [known, code] : torch->dtypes)
    if (known == dtype.ptr()) return code;
  return std::nullopt;
}

std::optional<TensorMemory> memory_of(PyObject* object) {
  if (attribute(object, torch->is_cpu).ptr() != Py_True) return std::nullopt;
  if (attribute(object, torch->is_nested).ptr() != Py_False) return std::nullopt;
  if (call(object, torch->is_contiguous).ptr() != Py_True) return std::nullopt;
  if (call(object, torch->is_neg).ptr() != Py_False) return std::nullopt;
  const auto dtype = dtype_of(object);
  if (!dtype) return std::nullopt;
  const auto count = number(object, torch->numel);
  if (!count || *count == 0) return std::nullopt;
  const auto address = number(object, torch->data_ptr);
  if (!address || *address == 0) return std::nullopt;
  return TensorMemory{reinterpret_cast<std::byte*>(*address), *count, *dtype};
}

void learn_torch(const std::vector<py::type>& types, const std::vector<py::object>& dtypes,
                 const std::vector<std::uint8_t>& codes) {
  if (torch != nullptr) return;
  auto learnt = std::make_unique<Torch>();
  for (const py::type& type : types)
    learnt->types.push_back(reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr()));
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    learnt->dtypes.emplace_back(dtypes[i].inc_ref().ptr(), static_cast<DType>(codes.at(i)));
  torch = learnt.release();
}

}  // namespace

std::optional<TensorMemory> find_tensor(PyObject* object) {
  if (torch == nullptr) return std::nullopt;
  if (std::ranges::find(torch->types, Py_TYPE(object)) == torch->types.end()) return std::nullopt;
  auto found = memory_of(object);
  if (!found) PyErr_Clear();
  return found;
}

void register_tensors(py::module_& module) {
  module.def("learn_torch", &learn_torch, py::arg("types"), py::arg("dtypes"), py::arg("codes"));
}

}  // namespace gradring::bind
