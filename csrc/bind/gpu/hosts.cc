// _core.GpuHosts and _core.HostsWork: all_reduce of device addresses, through NCCL inside the hosts
// and staged between them. What the arrays are, and that they live long enough, is known to the
// Python modules above.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <vector>

#include "bind/gil.h"
#include "bind/module.h"
#include "bind/operations.h"
#include "bind/pending_work.h"
#include "collectives/device/gpu_hosts.h"
#include "gpu/stream.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::GpuHosts;
using collectives::HostsWork;
using collectives::Operation;
using NoGil = py::call_guard<WithoutGil>;

struct PyGpuHosts {
  std::shared_ptr<Communicator> communicator;
  std::unique_ptr<GpuHosts> hosts;
  PyGpuHosts(std::shared_ptr<Communicator> ranks, std::unique_ptr<GpuHosts> joined)
      : communicator(std::move(ranks)), hosts(std::move(joined)) {}
  PyGpuHosts(PyGpuHosts&&) = default;
  PyGpuHosts& operator=(PyGpuHosts&&) = delete;
  // Waits for the GPU, where an operation was under way.
  ~PyGpuHosts() {
    if (!hosts) return;
    const WithoutGil release;
    hosts.reset();
  }
};

// Nothing where it is no operation of these; then on no rank.
std::optional<HostsWork> start_on_hosts(PyGpuHosts& self, std::uint8_t op, std::uintptr_t source,
                                        std::uintptr_t target, std::uint8_t dtype,
                                        std::uint64_t count, std::uintptr_t stream,
                                        std::uint8_t reduce_op, std::uint8_t algorithm,
                                        bool is_rank_ordered, std::int64_t timeout_ms) {
  if (dtype >= kDTypeCount) throw InvalidArgument("unknown dtype");
  Operation operation = operation_of(op, reduce_op, 0, count, {}, {}, algorithm, is_rank_ordered);
  operation.request.dtype = static_cast<DType>(dtype);
  if (!GpuHosts::knows(operation)) return std::nullopt;
  operation.input = reinterpret_cast<const std::byte*>(source);
  operation.output = reinterpret_cast<std::byte*>(target);
  const Extent extent{count, operation.request.dtype};
  check_operation(*self.communicator, operation, extent, extent);
  const WithoutGil release;
  return self.hosts->submit(operation, gpu::stream_of(stream),
                            timeout_of(*self.communicator, timeout_ms));
}

}  // namespace

void register_gpu_hosts(py::module_& module) {
  py::class_<HostsWork>(module, "HostsWork")
      .def(
          "order",
          [](HostsWork& self, std::uintptr_t stream, std::int64_t timeout_ms) {
            self.order(gpu::stream_of(stream), Millis{timeout_ms});
          },
          py::arg("stream"), py::arg("timeout_ms"), NoGil())
      .def(
          "wait", [](HostsWork& self, std::int64_t timeout_ms) { self.wait(Millis{timeout_ms}); },
          py::arg("timeout_ms"), NoGil())
      .def("done", &HostsWork::is_done)
      .def("is_over", &HostsWork::is_over);

  py::class_<PyGpuHosts>(module, "GpuHosts")
      .def_static(
          "join",
          [](const std::shared_ptr<Communicator>& ranks, int device, const std::vector<Rank>& hosts,
             std::int64_t timeout_ms) {
            std::unique_ptr<GpuHosts> joined;
            {
              const WithoutGil release;
              joined = GpuHosts::join(ranks, device, hosts, timeout_of(*ranks, timeout_ms));
            }
            return PyGpuHosts(ranks, std::move(joined));
          },
          py::arg("communicator"), py::arg("device"), py::arg("hosts"), py::arg("timeout_ms") = -1)
      .def_property_readonly("device", [](PyGpuHosts& self) { return self.hosts->device(); })
      .def("submit", &start_on_hosts, py::arg("op"), py::arg("source"), py::arg("target"),
           py::arg("dtype"), py::arg("count"), py::arg("stream"), py::kw_only(),
           py::arg("reduce_op") = 0, py::arg("algorithm") = 0, py::arg("is_rank_ordered") = false,
           py::arg("timeout_ms") = -1);
}

}  // namespace gradring::bind
