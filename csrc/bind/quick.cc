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

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/tensors.h"
#include "collectives/communicator.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::Operation;

constexpr const char* kCapsule = "gradring.quick";

// Of one call, in the method's order; borrowed, nullptr where none is given.
using Arguments = std::array<PyObject*, 3>;

// The call's result (a new reference), or nullptr where the method has to look at it.
using Plain = PyObject* (*)(Communicator&, const Arguments&);

struct Named {
  const char* name;
  Plain plain;
  std::array<const char*, 3> parameters;  // In the method's order; nullptr: in place only, or none.
  Py_ssize_t most_in_place;
  PyMethodDef definition;
};

struct Quick {
  std::shared_ptr<Communicator> communicator;
  py::object method;
  const Named* named;
};

// Nothing where an argument has no place here.
std::optional<Arguments> arrange(const Named& named, PyObject* const* values, Py_ssize_t count,
                                 PyObject* names) {
  Arguments arguments{};
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

constexpr std::array<const char*, kReduceOpCount> kOps = {"sum", "avg",  "prod", "min",
                                                          "max", "band", "bor",  "bxor"};

std::optional<ReduceOp> op_of(PyObject* text) {
  if (text == nullptr) return ReduceOp::kSum;
  if (!PyUnicode_Check(text)) return std::nullopt;
  for (std::size_t op = 0; op < kOps.size(); ++op)
    if (PyUnicode_CompareWithASCIIString(text, kOps[op]) == 0) return static_cast<ReduceOp>(op);
  return std::nullopt;
}

// Memory held for the length of a call; empty where the object has none that can be sent as it is.
class Held {
 public:
  Held(PyObject* array, bool is_written) {
    if (array == nullptr) return;
    if (const auto tensor = find_tensor(array)) {
      data_ = tensor->data;
      count_ = tensor->count;
      dtype_ = tensor->dtype;
      return;
    }
    // A class written in Python may be more than its memory, as NumPy's masked arrays are.
    if (PyType_HasFeature(Py_TYPE(array), Py_TPFLAGS_HEAPTYPE)) return;
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (is_written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, &view_, flags) != 0) {
      PyErr_Clear();
      view_.obj = nullptr;
      return;
    }
    dtype_ = find_dtype(view_);
    if (!dtype_) return;
    data_ = static_cast<std::byte*>(view_.buf);
    count_ = static_cast<std::uint64_t>(view_.len / view_.itemsize);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  explicit operator bool() const { return dtype_.has_value(); }
  DType dtype() const { return *dtype_; }
  std::byte* data() const { return data_; }
  std::uint64_t count() const { return count_; }

 private:
  Py_buffer view_{};
  std::byte* data_ = nullptr;
  std::uint64_t count_ = 0;
  std::optional<DType> dtype_;
};

PyObject* run(Communicator& communicator, const Operation& operation, PyObject* result) {
  if (collectives::overlaps_wrongly(operation, communicator.rank(), communicator.world_size()))
    return nullptr;
  {
    const WithoutGil no_gil;
    communicator.run(operation, communicator.timeout());
  }
  Py_INCREF(result);
  return result;
}

Operation operation_of(OpKind op, const Held& input, const Held& output, std::uint64_t count) {
  Operation operation;
  operation.request.op = op;
  operation.request.dtype = input.dtype();
  operation.request.count = count;
  operation.input = input.data();
  operation.output = output.data();
  return operation;
}

// all_reduce(x[, op][, out=])
PyObject* all_reduce(Communicator& communicator, const Arguments& arguments) {
  const auto [x, op_text, out] = arguments;
  const bool is_in_place = out == nullptr || out == Py_None;
  const auto op = op_of(op_text);
  const Held input(x, is_in_place);
  if (!input || !op || !is_defined(input.dtype(), *op)) return nullptr;
  const Held apart(is_in_place ? nullptr : out, true);
  if (!is_in_place && (!apart || apart.dtype() != input.dtype() || apart.count() != input.count()))
    return nullptr;
  Operation operation =
      operation_of(OpKind::kAllReduce, input, is_in_place ? input : apart, input.count());
  operation.request.reduce_op = *op;
  return run(communicator, operation, is_in_place ? x : out);
}

// broadcast(x[, root])
PyObject* broadcast(Communicator& communicator, const Arguments& arguments) {
  const auto [x, root_number, none] = arguments;
  long root = 0;
  if (root_number != nullptr) {
    if (!PyLong_CheckExact(root_number)) return nullptr;
    int overflow = 0;
    root = PyLong_AsLongAndOverflow(root_number, &overflow);
    if (overflow != 0 || root < 0 || root >= communicator.world_size()) return nullptr;
  }
  const Held array(x, root != communicator.rank());
  if (!array) return nullptr;
  Operation operation = operation_of(OpKind::kBroadcast, array, array, array.count());
  operation.request.root = static_cast<Rank>(root);
  return run(communicator, operation, x);
}

// all_gather(x, out)
PyObject* all_gather(Communicator& communicator, const Arguments& arguments) {
  const auto [x, out, none] = arguments;
  const Held input(x, false);
  const Held output(out, true);
  const auto ranks = static_cast<std::uint64_t>(communicator.world_size());
  if (!input || !output || input.dtype() != output.dtype() ||
      output.count() != input.count() * ranks)
    return nullptr;
  return run(communicator, operation_of(OpKind::kAllGather, input, output, output.count()), out);
}

// reduce_scatter(x, out[, op])
PyObject* reduce_scatter(Communicator& communicator, const Arguments& arguments) {
  const auto [x, out, op_text] = arguments;
  const auto op = op_of(op_text);
  const Held input(x, false);
  const Held output(out, true);
  if (!op || !input || !output || input.dtype() != output.dtype() ||
      !is_defined(input.dtype(), *op))
    return nullptr;
  Operation operation = operation_of(OpKind::kReduceScatter, input, output, input.count());
  operation.request.reduce_op = *op;
  const auto extents =
      collectives::extents_of(operation.request, communicator.rank(), communicator.world_size());
  if (output.count() != extents.output) return nullptr;
  return run(communicator, operation, out);
}

// barrier()
PyObject* barrier(Communicator& communicator, const Arguments&) {
  Operation operation;
  operation.request.op = OpKind::kBarrier;
  operation.request.dtype = DType::kUInt8;
  return run(communicator, operation, Py_None);
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

std::array<Named, 5> calls = {{
    {"all_reduce", &all_reduce, {nullptr, "op", "out"}, 2, define("all_reduce")},
    {"broadcast", &broadcast, {nullptr, "root"}, 2, define("broadcast")},
    {"all_gather", &all_gather, {nullptr, "out"}, 2, define("all_gather")},
    {"reduce_scatter", &reduce_scatter, {nullptr, "out", "op"}, 3, define("reduce_scatter")},
    {"barrier", &barrier, {}, 0, define("barrier")},
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
