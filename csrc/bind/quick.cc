// quick_all_reduce: the call that small gradients take. pybind11's dispatch and a Python frame cost
// more than a shared-memory all_reduce of 4 bytes, so the plain form `all_reduce(x)` and
// `all_reduce(x, "sum")` of a contiguous buffer goes straight through the C API; everything else is
// handed to the Python method, which also words every complaint.
#include <pybind11/pybind11.h>

#include <array>
#include <exception>

#include "bind/arrays.h"
#include "bind/module.h"
#include "collectives/communicator.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;

constexpr const char* kCapsule = "gradring.quick_all_reduce";

struct Quick {
  std::shared_ptr<Communicator> communicator;
  py::object method;
};

constexpr std::array<const char*, kReduceOpCount> kOps = {"sum", "avg",  "prod", "min",
                                                          "max", "band", "bor",  "bxor"};

// -1: not a plain call.
int op_of(PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (names != nullptr && PyTuple_GET_SIZE(names) != 0) return -1;
  if (count == 1) return 0;
  if (count != 2 || !PyUnicode_Check(args[1])) return -1;
  for (std::size_t op = 0; op < kOps.size(); ++op)
    if (PyUnicode_CompareWithASCIIString(args[1], kOps[op]) == 0) return static_cast<int>(op);
  return -1;
}

// False: the method has to look at it. No Python error is left set.
bool run(const Quick& quick, PyObject* array, ReduceOp op) {
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto release = [](Py_buffer* held) { PyBuffer_Release(held); };
  const std::unique_ptr<Py_buffer, decltype(release)> guard(&view, release);
  const std::optional<DType> dtype = find_dtype(view);
  if (!dtype || !is_defined(*dtype, op)) return false;
  collectives::Operation operation;
  operation.request.op = OpKind::kAllReduce;
  operation.request.dtype = *dtype;
  operation.request.reduce_op = op;
  operation.request.count = static_cast<std::uint64_t>(view.len / view.itemsize);
  operation.output = static_cast<std::byte*>(view.buf);
  operation.input = operation.output;
  const py::gil_scoped_release no_gil;
  quick.communicator->run(operation, quick.communicator->timeout());
  return true;
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const auto* quick = static_cast<const Quick*>(PyCapsule_GetPointer(self, kCapsule));
  const int op = count > 0 ? op_of(args, count, names) : -1;
  if (op >= 0) {
    try {
      if (run(*quick, args[0], static_cast<ReduceOp>(op))) {
        Py_INCREF(args[0]);
        return args[0];
      }
    } catch (...) {
      set_python_error(std::current_exception());
      return nullptr;
    }
  }
  return PyObject_Vectorcall(quick->method.ptr(), args, static_cast<std::size_t>(count), names);
}

// A vectorcall function, as METH_FASTCALL | METH_KEYWORDS wants it.
PyMethodDef definition = {"all_reduce",
                          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                          METH_FASTCALL | METH_KEYWORDS, "See Communicator.all_reduce."};

}  // namespace

void register_quick(py::module_& module) {
  module.def(
      "quick_all_reduce",
      [](std::shared_ptr<Communicator> communicator, py::object method) {
        auto quick = std::make_unique<Quick>(Quick{std::move(communicator), std::move(method)});
        const py::capsule capsule(quick.get(), kCapsule, [](PyObject* dying) {
          delete static_cast<Quick*>(PyCapsule_GetPointer(dying, kCapsule));
        });
        [[maybe_unused]] const Quick* owned_by_capsule = quick.release();
        return py::reinterpret_steal<py::object>(
            PyCFunction_NewEx(&definition, capsule.ptr(), nullptr));
      },
      py::arg("communicator"), py::arg("method"));
}

}  // namespace gradring::bind
