// _core.GpuCompressed and _core.GpuCompressedWork: compressed sums of device addresses. What the
// arrays are, and that they live long enough, is known to the Python modules above.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "bind/module.h"
#include "bind/pending_work.h"
#include "collectives/device/gpu_compressed.h"
#include "gpu/plugin.h"
#include "gpu/stream.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::GpuCompressed;
using collectives::GpuCompressedWork;
using NoGil = py::call_guard<WithoutGil>;

struct PyGpuCompressed {
  PyGpuCompressed(std::shared_ptr<Communicator> ranks, std::unique_ptr<GpuCompressed> made)
      : communicator(std::move(ranks)), sums(std::move(made)) {}
  PyGpuCompressed(PyGpuCompressed&&) = default;
  PyGpuCompressed& operator=(PyGpuCompressed&&) = delete;
  // Waits for the GPU.
  ~PyGpuCompressed() {
    if (!sums) return;
    const WithoutGil release;
    sums.reset();
  }

  std::shared_ptr<Communicator> communicator;
  std::unique_ptr<GpuCompressed> sums;
};

// A sum in flight, and where its divisor comes from.
struct PendingSum {
  std::shared_ptr<Communicator> communicator;
  GpuCompressedWork work;
  Buffer divisor;
};

// Nothing where this rank's plugin lacks the codec's kernels for the device.
std::optional<PendingSum> start_sum(PyGpuCompressed& self, const collectives::Compressed& wanted,
                                    const GpuCompressed::Place& place, const py::object& total,
                                    std::int64_t timeout_ms) {
  collectives::Compressed what = wanted;
  if (!self.sums->knows(what, place.device)) return std::nullopt;
  Buffer divisor;
  if (!total.is_none()) {
    divisor = Buffer(total, static_cast<int>(DType::kFloat64), false);
    if (divisor.count() != 1) throw InvalidArgument("the total must be one float64");
    what.divisor_at = reinterpret_cast<const double*>(divisor.data());
  }
  const auto start = [&] {
    const WithoutGil release;
    return self.sums->submit(what, place, timeout_of(*self.communicator, timeout_ms));
  };
  auto work = start();
  return PendingSum{self.communicator, std::move(work), std::move(divisor)};
}

float* floats_at(std::uint64_t address) {
  return reinterpret_cast<float*>(address);
}

}  // namespace

void register_gpu_compressed(py::module_& module) {
  py::class_<PendingSum>(module, "GpuCompressedWork")
      .def(
          "order",
          [](PendingSum& self, std::uint64_t stream, std::int64_t timeout_ms) {
            self.work.order(gpu::stream_of(stream), Millis{timeout_ms});
          },
          py::arg("stream"), py::arg("timeout_ms"), NoGil())
      .def(
          "wait",
          [](PendingSum& self, std::int64_t timeout_ms) { self.work.wait(Millis{timeout_ms}); },
          py::arg("timeout_ms"), NoGil())
      .def("done", [](const PendingSum& self) { return self.work.is_done(); })
      .def("is_over", [](const PendingSum& self) { return self.work.is_over(); });

  py::class_<PyGpuCompressed>(module, "GpuCompressed")
      .def(py::init([](const std::shared_ptr<Communicator>& communicator) {
             return PyGpuCompressed(communicator,
                                    std::make_unique<GpuCompressed>(communicator, gpu::devices()));
           }),
           py::arg("communicator"))
      .def(
          "submit",
          [](PyGpuCompressed& self, std::uint64_t values, std::uint64_t residual,
             std::uint64_t count, std::pair<std::uint8_t, double> codec, int device,
             const std::vector<std::uint64_t>& streams, const py::object& total,
             std::int64_t timeout_ms) {
            collectives::Compressed what;
            what.codec = codec_of(codec.first, codec.second);
            what.count = count;
            what.values = floats_at(values);
            what.residual = floats_at(residual);
            GpuCompressed::Place place{device, {}};
            for (const std::uint64_t stream : streams)
              place.streams.push_back(gpu::stream_of(stream));
            return start_sum(self, what, place, total, timeout_ms);
          },
          py::arg("values"), py::arg("residual"), py::arg("count"), py::arg("codec"),
          py::arg("device"), py::arg("streams"), py::arg("total"), py::arg("timeout_ms") = -1);
}

}  // namespace gradring::bind
