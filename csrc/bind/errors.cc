// C++ error kinds -> the classes of gradring.errors.
#include <pybind11/pybind11.h>

#include <array>
#include <new>

#include "base/error.h"
#include "bind/module.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

// Of text that may name a file or a host by any bytes.
py::str readable(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

// The class of each kind. Never let go: while the interpreter ends, destructors still call us, and
// nothing can be imported any more.
std::array<PyObject*, static_cast<std::size_t>(ErrorKind::kInterrupted) + 1> classes{};

}  // namespace

py::object to_python(const Failure& failure) {
  const py::handle type = classes.at(static_cast<std::size_t>(failure.kind));
  py::object error = type(readable(failure.text));
  // What add_note() does since Python 3.11; before it the attribute is merely there.
  if (!failure.note.empty()) {
    py::list notes;
    notes.append(readable(failure.note));
    error.attr("__notes__") = notes;
  }
  if (failure.kind == ErrorKind::kPeerLost) error.attr("rank") = failure.rank;
  if (failure.cause) error.attr("__cause__") = to_python(*failure.cause);
  return error;
}

namespace {

void set_error_of(const Error& error) {
  // A signal handler raised, and its exception (KeyboardInterrupt) waits to be put back.
  if (error.kind() == ErrorKind::kInterrupted && restore_interrupt()) return;
  const py::object value = to_python(Failure::from(error));
  PyErr_SetObject(py::type::handle_of(value).ptr(), value.ptr());
}

}  // namespace

void set_python_error(const std::exception_ptr& pointer) noexcept {
  try {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      set_error_of(error);  // Which Python may refuse: without memory, say.
    }
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void register_errors(py::module_&) {
  const py::module_ errors = py::module_::import("gradring.errors");
  for (std::size_t kind = 0; kind < classes.size(); ++kind) {
    const std::string called{name(static_cast<ErrorKind>(kind))};
    classes[kind] = errors.attr(called.c_str()).cast<py::object>().release().ptr();
  }
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error&) {
      set_python_error(pointer);
    }
  });
}

}  // namespace gradring::bind
