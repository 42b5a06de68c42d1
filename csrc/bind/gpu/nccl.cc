// _core.NcclRanks and _core.NcclWork: device addresses in, NCCL's operations out. What the arrays
// are, and that they live long enough, is known to the Python modules above.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bind/gil.h"
#include "bind/module.h"
#include "bind/pending_work.h"
#include "collectives/device/nccl_ranks.h"
#include "gpu/stream.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::NcclRanks;
using collectives::NcclWork;
using Parts = std::optional<std::vector<std::uint64_t>>;
using NoGil = py::call_guard<WithoutGil>;

gpu::NcclCall nccl_call_of(std::uint8_t op, std::uint8_t dtype, std::uint8_t reduce_op) {
  if (op >= kOpKindCount || reduce_op >= kReduceOpCount || dtype >= kDTypeCount)
    throw InvalidArgument("unknown operation");
  gpu::NcclCall call;
  call.op = static_cast<OpKind>(op);
  call.dtype = static_cast<DType>(dtype);
  call.reduce_op = static_cast<ReduceOp>(reduce_op);
  return call;
}

NcclWork start_in_nccl(NcclRanks& self, std::uint8_t op, std::uintptr_t source,
                       std::uintptr_t target, std::uint8_t dtype, std::uint64_t count,
                       std::uintptr_t stream, std::uint8_t reduce_op, Rank root, Parts parts,
                       Parts recv_parts, std::optional<double> factor, std::int64_t timeout_ms) {
  gpu::NcclCall call = nccl_call_of(op, dtype, reduce_op);
  call.root = root;
  call.count = count;
  if (parts) call.parts = std::move(*parts);
  if (recv_parts) call.recv_parts = std::move(*recv_parts);
  call.input = reinterpret_cast<const std::byte*>(source);
  call.output = reinterpret_cast<std::byte*>(target);
  if (factor) collectives::set_factor(call, *factor, self.world_size());
  const WithoutGil release;
  return self.submit(call, gpu::stream_of(stream), timeout_of(self.timeout(), timeout_ms));
}

// Version and path of the NCCL that is, or would be, used.
py::tuple find(std::vector<std::string> wheels) {
  gpu::set_nccl_wheels(std::move(wheels));
  const gpu::NcclLibrary* library = nullptr;
  {
    const WithoutGil release;
    library = &gpu::nccl_library();
  }
  return py::make_tuple(gpu::nccl_version_text(library->version), library->path);
}

}  // namespace

void register_gpu_nccl(py::module_& module) {
  module.def("find_nccl", &find, py::arg("wheels"));

  py::class_<NcclWork>(module, "NcclWork")
      .def(
          "order",
          [](NcclWork& self, std::uintptr_t stream, std::int64_t timeout_ms) {
            self.order(gpu::stream_of(stream), Millis{timeout_ms});
          },
          py::arg("stream"), py::arg("timeout_ms"), NoGil())
      .def(
          "wait", [](NcclWork& self, std::int64_t timeout_ms) { self.wait(Millis{timeout_ms}); },
          py::arg("timeout_ms"), NoGil())
      .def("done", &NcclWork::is_done)
      .def("is_over", &NcclWork::is_done);

  py::class_<NcclRanks, std::shared_ptr<NcclRanks>>(module, "NcclRanks")
      .def_static(
          "join",
          [](Communicator& ranks, int device, std::int64_t timeout_ms) {
            return NcclRanks::join(ranks, device, timeout_of(ranks.timeout(), timeout_ms));
          },
          py::arg("communicator"), py::arg("device"), py::arg("timeout_ms") = -1, NoGil())
      .def_static(
          "knows",
          [](std::uint8_t op, std::uint8_t dtype, std::uint8_t reduce_op) {
            return gpu::nccl_knows(nccl_call_of(op, dtype, reduce_op));
          },
          py::arg("op"), py::arg("dtype"), py::arg("reduce_op") = 0)
      .def_property_readonly("rank", &NcclRanks::rank)
      .def_property_readonly("world_size", &NcclRanks::world_size)
      .def_property_readonly("device", &NcclRanks::device)
      .def_property_readonly("is_closed", &NcclRanks::is_closed)
      .def("submit", &start_in_nccl, py::arg("op"), py::arg("source"), py::arg("target"),
           py::arg("dtype"), py::arg("count"), py::arg("stream"), py::kw_only(),
           py::arg("reduce_op") = 0, py::arg("root") = 0, py::arg("parts") = py::none(),
           py::arg("recv_parts") = py::none(), py::arg("factor") = py::none(),
           py::arg("timeout_ms") = -1)
      .def(
          "split",
          [](NcclRanks& self, std::int64_t color, std::int64_t key, std::int64_t timeout_ms) {
            return self.split(color, key, timeout_of(self.timeout(), timeout_ms));
          },
          py::arg("color"), py::arg("key"), py::arg("timeout_ms") = -1, NoGil())
      .def(
          "close",
          [](NcclRanks& self, std::int64_t timeout_ms) {
            self.close(timeout_of(self.timeout(), timeout_ms));
          },
          py::arg("timeout_ms") = -1, NoGil());
}

}  // namespace gradring::bind
