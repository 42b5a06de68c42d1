// What the optimizers need of _core.Communicator: memory that the ranks of a host share, and
// averages in the background.
#include <pybind11/pybind11.h>

#include <memory>

#include "bind/module.h"
#include "bind/pending_work.h"
#include "collectives/shared_array.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::Operation;
using collectives::SharedArray;

// The average of all ranks' arrays with a divisor that an earlier operation, maybe still in flight,
// writes to `total`.
PendingWork average(const std::shared_ptr<Communicator>& self, const py::object& array, int dtype,
                    const py::object& total, std::int64_t timeout_ms) {
  Buffer buffer(array, dtype, true);
  Buffer divisor(total, static_cast<int>(DType::kFloat64), false);
  if (divisor.count() != 1) throw InvalidArgument("average: the total must be one float64");
  if (!is_defined(buffer.dtype(), ReduceOp::kAvg))
    throw InvalidArgument(str("average is not defined for ", name(buffer.dtype())));
  Operation operation;
  operation.request.op = OpKind::kAllReduce;
  operation.request.dtype = buffer.dtype();
  operation.request.reduce_op = ReduceOp::kAvg;
  operation.request.count = buffer.count();
  operation.input = operation.output = buffer.data();
  operation.divisor_at = reinterpret_cast<const double*>(divisor.data());
  auto work = self->submit(operation, timeout_of(*self, timeout_ms));
  return {self, std::move(work), nullptr, std::move(divisor), std::move(buffer)};
}

}  // namespace

void register_gradients(py::module_& module) {
  py::class_<SharedArray, std::shared_ptr<SharedArray>>(module, "SharedArray",
                                                        py::buffer_protocol())
      .def_buffer([](const SharedArray& self) {
        return py::buffer_info(self.data(), 1, py::format_descriptor<unsigned char>::format(), 1,
                               {self.bytes()}, {std::size_t{1}});
      });

  py::class_<Communicator, std::shared_ptr<Communicator>>(module.attr("Communicator"))
      .def(
          "share_memory",
          [](Communicator& self, std::uint64_t size_bytes, std::int64_t timeout_ms) {
            const py::gil_scoped_release release;
            return self.share_memory(size_bytes, timeout_of(self, timeout_ms));
          },
          py::arg("size_bytes"), py::arg("timeout_ms") = -1)
      .def("average", &average, py::arg("array"), py::arg("dtype"), py::arg("total"),
           py::arg("timeout_ms") = -1);
}

}  // namespace gradring::bind
