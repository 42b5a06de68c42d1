// _core.Staged and _core.StagedWork: collectives on GPU memory that go through host memory, and
// which way GPU collectives take. The documented classes are in gradring/gpu.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "bind/abandoned.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/operations.h"
#include "bind/pending_work.h"
#include "collectives/device/gpu_path.h"
#include "collectives/device/staged.h"
#include "gpu/plugin.h"
#include "gpu/stream.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::GpuFacts;
using collectives::GpuPath;
using collectives::Operation;
using collectives::Staged;
using collectives::StagedWork;

DType dtype_of(int code) {
  if (code < 0 || code >= static_cast<int>(kDTypeCount)) throw InvalidArgument("unknown dtype");
  return static_cast<DType>(code);
}

struct PyStaged {
  std::shared_ptr<Communicator> communicator;
  std::unique_ptr<Staged> staged;
};

// Work in flight and the objects that own its memory.
struct PendingStaged {
  PendingStaged(std::shared_ptr<Communicator> used_communicator,
                std::unique_ptr<StagedWork> started, py::object owners)
      : communicator(std::move(used_communicator)),
        work(std::move(started)),
        keep(std::move(owners)) {}
  PendingStaged(PendingStaged&&) = default;
  PendingStaged& operator=(PendingStaged&&) = default;
  ~PendingStaged();

  void wait(std::int64_t timeout_ms) const {
    const WithoutGil release;
    work->wait(timeout_of(*communicator, timeout_ms));
  }
  void wait_stream(std::uint64_t stream, std::int64_t timeout_ms) const {
    const WithoutGil release;
    work->wait(work->view(gpu::stream_of(stream)), timeout_of(*communicator, timeout_ms));
  }

  // The streams are done with its memory.
  bool is_over() const { return work->is_over(); }

  std::shared_ptr<Communicator> communicator;
  std::unique_ptr<StagedWork> work;  // None: moved from.
  py::object keep;
};

PendingStaged::~PendingStaged() {
  if (!work || is_over()) return;
  abandoned<PendingStaged>().add(std::move(*this));
}

PendingStaged start_staged(PyStaged& self, Operation operation, const Staged::Place& place,
                           std::int64_t timeout_ms, py::object keep) {
  abandoned<PendingStaged>().release_finished();
  std::unique_ptr<StagedWork> work;
  const Millis timeout = timeout_of(*self.communicator, timeout_ms);
  {
    const WithoutGil release;
    work = std::make_unique<StagedWork>(self.staged->submit(operation, place, timeout));
  }
  return {self.communicator, std::move(work), std::move(keep)};
}

// Of an all_reduce in place, of float32.
py::dict measure(PyStaged& self, std::uint64_t pointer, std::uint64_t count, int device,
                 std::int64_t timeout_ms) {
  Operation operation;
  operation.request.count = count;
  operation.output = reinterpret_cast<std::byte*>(pointer);
  operation.input = operation.output;
  Staged::Stages stages;
  {
    const WithoutGil release;
    stages = self.staged->measure(operation, device, timeout_of(*self.communicator, timeout_ms));
  }
  py::dict result;
  result["down_s"] = stages.down_s;
  result["network_s"] = stages.network_s;
  result["up_s"] = stages.up_s;
  result["whole_s"] = stages.whole_s;
  result["rounds"] = stages.rounds;
  return result;
}

void register_staged_work(py::module_& module) {
  py::class_<PendingStaged>(module, "StagedWork")
      .def("wait", &PendingStaged::wait, py::arg("timeout_ms") = -1)
      .def("wait_stream", &PendingStaged::wait_stream, py::arg("stream"),
           py::arg("timeout_ms") = -1)
      .def("done", [](const PendingStaged& self) { return self.work->is_done(); })
      .def("is_over", [](const PendingStaged& self) { return self.work->is_over(); });
}

void register_choice(py::module_& module) {
  module.def(
      "choose_gpu_path",
      [](const std::vector<std::tuple<int, std::string, std::string, int, std::string>>& ranks,
         std::uint8_t wanted) {
        std::vector<GpuFacts> facts;
        for (const auto& [device, host, bus_id, version, trouble] : ranks)
          facts.push_back({device, host, bus_id, version, trouble});
        if (wanted > static_cast<std::uint8_t>(GpuPath::kNcclInHosts))
          throw InvalidArgument("unknown path");
        const auto choice = collectives::choose_gpu_path(facts, static_cast<GpuPath>(wanted));
        return py::make_tuple(std::string(collectives::name(choice.path)), choice.reason);
      },
      py::arg("ranks"), py::arg("wanted") = 0);
}

}  // namespace

void register_gpu_staged(py::module_& module) {
  register_staged_work(module);
  register_choice(module);
  py::class_<PyStaged>(module, "Staged")
      .def(py::init([](const std::shared_ptr<Communicator>& communicator, std::size_t slot_bytes,
                       std::uint32_t slots, bool streams_may_wait) {
             if (slots == 0 || slot_bytes < 4096)
               throw InvalidArgument("a staging needs one slot at least, of 4096 bytes at least");
             return PyStaged{
                 communicator,
                 std::make_unique<Staged>(communicator, gpu::devices(),
                                          Staged::Options{slot_bytes, slots, streams_may_wait})};
           }),
           py::arg("communicator"), py::arg("slot_bytes") = Staged::Options{}.slot_bytes,
           py::arg("slots") = Staged::Options{}.slots,
           py::arg("streams_may_wait") = Staged::Options{}.may_wait)
      .def(
          "submit",
          [](PyStaged& self, std::uint8_t op, std::uint64_t source, std::uint64_t source_count,
             std::uint64_t target, std::uint64_t target_count, int dtype, std::uint8_t reduce_op,
             Rank root, std::uint64_t count, Counts counts, Counts recv_counts,
             std::uint8_t algorithm, bool is_rank_ordered, int device, std::uint64_t stream,
             int wire_dtype, std::int64_t timeout_ms, py::object keep) {
            Operation operation = operation_of(op, reduce_op, root, count, std::move(counts),
                                               std::move(recv_counts), algorithm, is_rank_ordered);
            operation.request.dtype = dtype_of(dtype);
            operation.input = reinterpret_cast<const std::byte*>(source);
            operation.output = reinterpret_cast<std::byte*>(target);
            check_operation(*self.communicator, operation, {source_count, dtype_of(dtype)},
                            {target_count, dtype_of(dtype)});
            Staged::Place place{
                .device = device, .stream = gpu::stream_of(stream), .wire_dtype = {}};
            if (wire_dtype >= 0) place.wire_dtype = dtype_of(wire_dtype);
            return start_staged(self, operation, place, timeout_ms, std::move(keep));
          },
          py::arg("op"), py::kw_only(), py::arg("source") = 0, py::arg("source_count") = 0,
          py::arg("target") = 0, py::arg("target_count") = 0, py::arg("dtype"),
          py::arg("reduce_op") = 0, py::arg("root") = 0, py::arg("count") = 0,
          py::arg("counts") = py::none(), py::arg("recv_counts") = py::none(),
          py::arg("algorithm") = 0, py::arg("is_rank_ordered") = false, py::arg("device"),
          py::arg("stream"), py::arg("wire_dtype") = -1, py::arg("timeout_ms") = -1,
          py::arg("keep") = py::none())
      .def("measure", &measure, py::arg("pointer"), py::arg("count"), py::arg("device"),
           py::arg("timeout_ms") = -1)
      .def(
          "describe", [](PyStaged& self, int device) { return self.staged->describe(device); },
          py::arg("device"), py::call_guard<WithoutGil>());
}

}  // namespace gradring::bind
