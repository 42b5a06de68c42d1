// C++ error kinds -> the classes of gradring.errors.
#include <pybind11/pybind11.h>

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

}  // namespace

py::object to_python(const Failure& failure) {
  const py::object type =
      py::module_::import("gradring.errors").attr(std::string(name(failure.kind)).c_str());
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

void set_python_error(const std::exception_ptr& pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    // A signal handler raised, and its exception (KeyboardInterrupt) waits to be put back.
    if (error.kind() == ErrorKind::kInterrupted && restore_interrupt()) return;
    const py::object value = to_python(Failure::from(error));
    PyErr_SetObject(py::type::handle_of(value).ptr(), value.ptr());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

void register_errors(py::module_&) {
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
