#include "bind/quick_calls.h"

#include <limits>
#include <optional>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/operations.h"
#include "bind/results.h"
#include "bind/tensors.h"

namespace gradring::bind::quick {
namespace {

namespace py = pybind11;
using collectives::Operation;

constexpr std::array<const char*, kReduceOpCount> kOps = {"sum", "avg",  "prod", "min",
                                                          "max", "band", "bor",  "bxor"};

std::optional<ReduceOp> op_of(PyObject* text) {
  if (text == nullptr) return ReduceOp::kSum;
  if (!PyUnicode_Check(text)) return std::nullopt;
  for (std::size_t op = 0; op < kOps.size(); ++op)
    if (PyUnicode_CompareWithASCIIString(text, kOps[op]) == 0) return static_cast<ReduceOp>(op);
  return std::nullopt;
}

bool is_given(PyObject* argument) {
  return argument != nullptr && argument != Py_None;
}

// Nothing where it is none, or no int of Python's own.
std::optional<std::int32_t> whole_number(PyObject* argument) {
  if (!PyLong_CheckExact(argument)) return std::nullopt;
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(argument, &overflow);
  if (overflow != 0 || value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max())
    return std::nullopt;
  return static_cast<std::int32_t>(value);
}

std::optional<Rank> rank_of(PyObject* argument, const Caller& caller) {
  const auto rank = whole_number(argument);
  return rank && *rank >= 0 && *rank < caller.world_size() ? rank : std::nullopt;
}

std::optional<Rank> root_of(PyObject* argument, const Caller& caller) {
  return argument == nullptr ? std::optional<Rank>(0) : rank_of(argument, caller);
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

PyObject* run(const Caller& caller, const Operation& operation, PyObject* result) {
  if (collectives::overlaps_wrongly(operation, caller.rank(), caller.world_size())) return nullptr;
  {
    const WithoutGil no_gil;
    caller.communicator.run(operation, caller.timeout);
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

}  // namespace

// all_reduce(x[, op][, out=])
PyObject* all_reduce(const Caller& caller, const Arguments& arguments) {
  const auto [x, op_text, out, none] = arguments;
  const bool is_in_place = !is_given(out);
  const auto op = op_of(op_text);
  const Held input(x, is_in_place);
  if (!input || !op || !is_defined(input.dtype(), *op)) return nullptr;
  const Held apart(is_in_place ? nullptr : out, true);
  if (!is_in_place && (!apart || apart.dtype() != input.dtype() || apart.count() != input.count()))
    return nullptr;
  Operation operation =
      operation_of(OpKind::kAllReduce, input, is_in_place ? input : apart, input.count());
  operation.request.reduce_op = *op;
  return run(caller, operation, is_in_place ? x : out);
}

// broadcast(x[, root])
PyObject* broadcast(const Caller& caller, const Arguments& arguments) {
  const auto [x, root_number, none, nothing] = arguments;
  const auto root = root_of(root_number, caller);
  if (!root) return nullptr;
  const Held array(x, *root != caller.rank());
  if (!array) return nullptr;
  Operation operation = operation_of(OpKind::kBroadcast, array, array, array.count());
  operation.request.root = *root;
  return run(caller, operation, x);
}

// all_gather(x[, out])
PyObject* all_gather(const Caller& caller, const Arguments& arguments) {
  const auto [x, out, none, nothing] = arguments;
  const Held input(x, false);
  if (!input) return nullptr;
  const py::object made = is_given(out) ? py::object{} : make_gathered(x, caller.world_size());
  PyObject* const result = is_given(out) ? out : made.ptr();
  const Held output(result, true);
  const auto ranks = static_cast<std::uint64_t>(caller.world_size());
  if (!output || input.dtype() != output.dtype() || output.count() != input.count() * ranks)
    return nullptr;
  return run(caller, operation_of(OpKind::kAllGather, input, output, output.count()), result);
}

// reduce_scatter(x[, out[, op]])
PyObject* reduce_scatter(const Caller& caller, const Arguments& arguments) {
  const auto [x, out, op_text, none] = arguments;
  const auto op = op_of(op_text);
  const Held input(x, false);
  if (!op || !input || !is_defined(input.dtype(), *op)) return nullptr;
  Operation operation = operation_of(OpKind::kReduceScatter, input, input, input.count());
  operation.request.reduce_op = *op;
  const auto extents =
      collectives::extents_of(operation.request, caller.rank(), caller.world_size());
  const py::object made = is_given(out) ? py::object{} : make_flat(x, extents.output);
  PyObject* const result = is_given(out) ? out : made.ptr();
  const Held output(result, true);
  if (!output || input.dtype() != output.dtype() || output.count() != extents.output)
    return nullptr;
  operation.output = output.data();
  return run(caller, operation, result);
}

// reduce(x[, root[, op]][, out=])
PyObject* reduce(const Caller& caller, const Arguments& arguments) {
  const auto [x, root_number, op_text, out] = arguments;
  const auto root = root_of(root_number, caller);
  const auto op = op_of(op_text);
  if (!root || !op) return nullptr;
  const bool is_root = *root == caller.rank();
  const bool is_apart = is_root && is_given(out);
  const Held input(x, is_root && !is_apart);
  if (!input || !is_defined(input.dtype(), *op)) return nullptr;
  const Held apart(is_apart ? out : nullptr, true);
  if (is_apart && (!apart || apart.dtype() != input.dtype() || apart.count() != input.count()))
    return nullptr;
  Operation operation =
      operation_of(OpKind::kReduce, input, is_apart ? apart : input, input.count());
  operation.request.reduce_op = *op;
  operation.request.root = *root;
  if (!is_root) operation.output = nullptr;
  return run(caller, operation, is_apart ? out : x);
}

// gather(x[, root][, out=])
PyObject* gather(const Caller& caller, const Arguments& arguments) {
  const auto [x, root_number, out, none] = arguments;
  const auto root = root_of(root_number, caller);
  const Held input(x, false);
  if (!root || !input) return nullptr;
  Operation operation = operation_of(OpKind::kGather, input, input, input.count());
  operation.request.root = *root;
  operation.output = nullptr;
  if (*root != caller.rank()) return run(caller, operation, Py_None);
  const py::object made = is_given(out) ? py::object{} : make_gathered(x, caller.world_size());
  PyObject* const result = is_given(out) ? out : made.ptr();
  const Held output(result, true);
  const auto ranks = static_cast<std::uint64_t>(caller.world_size());
  if (!output || output.dtype() != input.dtype() || output.count() != input.count() * ranks)
    return nullptr;
  operation.output = output.data();
  return run(caller, operation, result);
}

// scatter(x, root, out=)
PyObject* scatter(const Caller& caller, const Arguments& arguments) {
  const auto [x, root_number, out, none] = arguments;
  const auto root = root_of(root_number, caller);
  if (!root || !is_given(out)) return nullptr;
  const Held output(out, true);
  if (!output) return nullptr;
  Operation operation = operation_of(OpKind::kScatter, output, output, output.count());
  operation.request.root = *root;
  operation.input = nullptr;
  if (*root != caller.rank()) return run(caller, operation, out);
  const Held input(x, false);
  const auto ranks = static_cast<std::uint64_t>(caller.world_size());
  if (!input || input.dtype() != output.dtype() || input.count() != output.count() * ranks)
    return nullptr;
  operation.input = input.data();
  return run(caller, operation, out);
}

// all_to_all(x[, out])
PyObject* all_to_all(const Caller& caller, const Arguments& arguments) {
  const auto [x, out, none, nothing] = arguments;
  const Held input(x, false);
  const auto ranks = static_cast<std::uint64_t>(caller.world_size());
  if (!input || input.count() % ranks != 0) return nullptr;
  const py::object made = is_given(out) ? py::object{} : make_like(x);
  PyObject* const result = is_given(out) ? out : made.ptr();
  const Held output(result, true);
  if (!output || output.dtype() != input.dtype() || output.count() != input.count()) return nullptr;
  Operation operation = operation_of(OpKind::kAllToAll, input, output, 0);
  operation.request.counts.assign(ranks, input.count() / ranks);
  operation.request.recv_counts = operation.request.counts;
  return run(caller, operation, result);
}

namespace {

// One message, as communicator.cc starts those that are special.
PyObject* transfer(const Caller& caller, const Arguments& arguments, bool is_recv) {
  const auto [x, peer_number, tag_number, none] = arguments;
  if (!is_given(peer_number)) return nullptr;
  const auto peer = rank_of(peer_number, caller);
  const auto tag = tag_number == nullptr ? 0 : whole_number(tag_number);
  const Held array(x, is_recv);
  if (!peer || !tag || !array) return nullptr;
  const auto message = message_of(is_recv, *peer, *tag, array);
  caller.communicator.start(message, false);
  {
    const WithoutGil no_gil;
    caller.communicator.wait(message, caller.timeout);
  }
  PyObject* const result = is_recv ? x : Py_None;
  Py_INCREF(result);
  return result;
}

}  // namespace

// send(x, dst[, tag])
PyObject* send(const Caller& caller, const Arguments& arguments) {
  return transfer(caller, arguments, false);
}

// recv(x, src[, tag])
PyObject* recv(const Caller& caller, const Arguments& arguments) {
  return transfer(caller, arguments, true);
}

// barrier()
PyObject* barrier(const Caller& caller, const Arguments&) {
  Operation operation;
  operation.request.op = OpKind::kBarrier;
  operation.request.dtype = DType::kUInt8;
  return run(caller, operation, Py_None);
}

}  // namespace gradring::bind::quick
