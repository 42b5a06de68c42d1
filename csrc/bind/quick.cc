// The calls that small arrays take. pybind11's dispatch and a Python frame cost more than a
// shared-memory collective of 4 bytes, so the plain forms (arguments in place or by name,
// contiguous buffers or tensors, everything else at its default) go straight through the C API; the
// rest is handed to the Python method, which also words every complaint.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>

#include "bind/module.h"
#include "bind/quick_calls.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;

constexpr const char* kCapsule = "gradring.quick";

using Plain = PyObject* (*)(Communicator&, const quick::Arguments&);

struct Named {
  const char* name;
  Plain plain;
  std::array<const char*, 4> parameters;  // In the method's order; nullptr: in place only, or none.
  Py_ssize_t most_in_place;
  PyMethodDef definition;
};

struct Quick {
  std::shared_ptr<Communicator> communicator;
  py::object method;
  const Named* named;
};

// Nothing where an argument has no place here.
std::optional<quick::Arguments> arrange(const Named& named, PyObject* const* values,
                                        Py_ssize_t count, PyObject* names) {
  quick::Arguments arguments{};
  if (count > named.most_in_place) return std::nullopt;
  std::copy_n(values, count, arguments.begin());
  const Py_ssize_t by_name = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < by_name; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    std::size_t place = 0;
    while (place < arguments.size() &&
           (named.parameters[place] == nullptr ||
            PyUnicode_CompareWithASCIIString(name, named.parameters[place]) != 0))
      ++place;
    if (place == arguments.size() || arguments[place] != nullptr) return std::nullopt;
    arguments[place] = values[count + i];
  }
  return arguments;
}

PyObject* call(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const auto* quick = static_cast<const Quick*>(PyCapsule_GetPointer(self, kCapsule));
  if (const auto arguments = arrange(*quick->named, values, count, names)) {
    try {
      if (PyObject* result = quick->named->plain(*quick->communicator, *arguments)) return result;
    } catch (...) {
      set_python_error(std::current_exception());
      return nullptr;
    }
  }
  return PyObject_Vectorcall(quick->method.ptr(), values, static_cast<std::size_t>(count), names);
}

// A vectorcall function has this type behind METH_FASTCALL | METH_KEYWORDS.
PyMethodDef define(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
          METH_FASTCALL | METH_KEYWORDS, "See the method of gradring.Communicator."};
}

std::array<Named, 11> calls = {{
    {"all_reduce", &quick::all_reduce, {nullptr, "op", "out"}, 2, define("all_reduce")},
    {"reduce_scatter", &quick::reduce_scatter, {nullptr, "out", "op"}, 3, define("reduce_scatter")},
    {"all_gather", &quick::all_gather, {nullptr, "out"}, 2, define("all_gather")},
    {"broadcast", &quick::broadcast, {nullptr, "root"}, 2, define("broadcast")},
    {"reduce", &quick::reduce, {nullptr, "root", "op", "out"}, 3, define("reduce")},
    {"gather", &quick::gather, {nullptr, "root", "out"}, 2, define("gather")},
    {"scatter", &quick::scatter, {nullptr, "root", "out"}, 2, define("scatter")},
    {"all_to_all", &quick::all_to_all, {nullptr, "out"}, 2, define("all_to_all")},
    {"send", &quick::send, {nullptr, "dst", "tag"}, 3, define("send")},
    {"recv", &quick::recv, {nullptr, "src", "tag"}, 3, define("recv")},
    {"barrier", &quick::barrier, {}, 0, define("barrier")},
}};

py::object make_quick(const std::shared_ptr<Communicator>& communicator, const std::string& name,
                      const py::object& method) {
  for (Named& named : calls) {
    if (name != named.name) continue;
    auto quick = std::make_unique<Quick>(Quick{communicator, method, &named});
    const py::capsule capsule(quick.get(), kCapsule, [](PyObject* dying) {
      delete static_cast<Quick*>(PyCapsule_GetPointer(dying, kCapsule));
    });
    [[maybe_unused]] const Quick* owned_by_capsule = quick.release();
    return py::reinterpret_steal<py::object>(
        PyCFunction_NewEx(&named.definition, capsule.ptr(), nullptr));
  }
  throw InvalidArgument(str("there is no quick form of '", name, "'"));
}

}  // namespace

void register_quick(py::module_& module) {
  module.def("quick", &make_quick, py::arg("communicator"), py::arg("name"), py::arg("method"));
}

}  // namespace gradring::bind
