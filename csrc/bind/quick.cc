// The calls that small arrays take. pybind11's dispatch and a Python frame cost more than a
// shared-memory collective of 4 bytes, so the plain forms (arguments in place or by name,
// contiguous buffers or tensors, a timeout, everything else at its default) go straight through the
// C API; the rest is handed to the Python method, which also words every complaint.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cmath>
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

using Plain = PyObject* (*)(const quick::Caller&, const quick::Arguments&);

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

struct Given {
  quick::Arguments arguments{};
  Millis timeout;
};

bool is_called(PyObject* name, const char* wanted) {
  return PyUnicode_CompareWithASCIIString(name, wanted) == 0;
}

// As gradring/timeouts.py has it: above 0, and finite.
std::optional<Millis> milliseconds(PyObject* seconds) {
  constexpr double kLongestSeconds = 1e9;
  double value = 0;
  if (PyFloat_CheckExact(seconds))
    value = PyFloat_AS_DOUBLE(seconds);
  else if (PyLong_CheckExact(seconds))
    value = PyLong_AsDouble(seconds);
  if (!(value > 0 && value <= kLongestSeconds)) {
    PyErr_Clear();  // Of a whole number beyond all doubles.
    return std::nullopt;
  }
  return Millis{std::max(1LL, std::llrint(value * 1000))};
}

// Nothing where an argument has no place here.
std::optional<Given> arrange(const Quick& quick, PyObject* const* values, Py_ssize_t count,
                             PyObject* names) {
  const auto& parameters = quick.named->parameters;
  Given given{.timeout = quick.communicator->timeout()};
  if (count > quick.named->most_in_place) return std::nullopt;
  std::copy_n(values, count, given.arguments.begin());
  const Py_ssize_t by_name = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < by_name; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    PyObject* const value = values[count + i];
    if (is_called(name, "timeout")) {
      const auto timeout = value == Py_None ? given.timeout : milliseconds(value);
      if (!timeout) return std::nullopt;
      given.timeout = *timeout;
      continue;
    }
    std::size_t place = 0;
    while (place < parameters.size() &&
           (parameters[place] == nullptr || !is_called(name, parameters[place])))
      ++place;
    if (place == parameters.size() || given.arguments[place] != nullptr) return std::nullopt;
    given.arguments[place] = value;
  }
  return given;
}

PyObject* call(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const auto* quick = static_cast<const Quick*>(PyCapsule_GetPointer(self, kCapsule));
  if (const auto given = arrange(*quick, values, count, names)) {
    try {
      const quick::Caller caller{*quick->communicator, given->timeout};
      if (PyObject* result = quick->named->plain(caller, given->arguments)) return result;
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
          METH_FASTCALL | METH_KEYWORDS, nullptr};
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

// `text`: the method's signature and documentation, as CPython wants them for a builtin.
py::object make_quick(const std::shared_ptr<Communicator>& communicator, const std::string& name,
                      const py::object& method, const std::string& text) {
  static std::array<std::string, calls.size()> texts;  // Under the GIL; for as long as the process.
  for (std::size_t at = 0; at < calls.size(); ++at) {
    Named& named = calls[at];
    if (name != named.name) continue;
    if (texts[at].empty() && !text.empty()) {
      texts[at] = text;
      named.definition.ml_doc = texts[at].c_str();
    }
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
  module.def("quick", &make_quick, py::arg("communicator"), py::arg("name"), py::arg("method"),
             py::arg("text") = "");
}

}  // namespace gradring::bind
