// Checkpoints through _core.PsClient: the cut, loading, and waiting for the servers' files.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bind/gil.h"
#include "bind/ps/client.h"
#include "ps/client/cut.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

// (number, lineages by shard, stamps of tables by shard)
py::tuple freeze_and_cut(PsClient& self, std::vector<std::string> jobs,
                         std::vector<ps::TableStamps> bases, std::int64_t freeze_ms,
                         std::int64_t timeout_ms) {
  ps::CutRequest request;
  request.jobs = std::move(jobs);
  request.bases = std::move(bases);
  request.timeout = self.timeout_of(timeout_ms);
  // Who is missing is told by the shards, which have to give up before this connection does.
  request.freeze = std::min(Millis{freeze_ms}, request.timeout * 4 / 5);
  ps::Cut cut;
  {
    const WithoutGil release;
    cut = ps::take_cut(*self.client, request);
  }
  return py::make_tuple(cut.number, cut.lineages, cut.stamps);
}

}  // namespace

void register_ps_cuts(py::class_<PsClient>& type) {
  using release = py::call_guard<WithoutGil>;
  type.def("freeze_and_cut", &freeze_and_cut, py::arg("jobs"),
           py::arg("bases") = std::vector<ps::TableStamps>{}, py::arg("freeze_ms") = 10000,
           py::arg("timeout_ms") = -1)
      .def(
          "begin_load",
          [](PsClient& self, const std::vector<std::string>& jobs, std::int64_t timeout_ms) {
            return ps::begin_load(*self.client, jobs, self.timeout_of(timeout_ms));
          },
          py::arg("jobs"), py::arg("timeout_ms") = -1, release())
      .def(
          "go_on_with_load",
          [](PsClient& self, const std::string& job, std::int64_t timeout_ms) {
            return ps::go_on_with_load(*self.client, job, self.timeout_of(timeout_ms));
          },
          py::arg("job"), py::arg("timeout_ms") = -1, release())
      .def(
          "give_up_load",
          [](PsClient& self, std::uint64_t number) { ps::give_up_load(*self.client, number); },
          py::arg("number"), release())
      .def(
          "end_load",
          [](PsClient& self, const std::string& job) { ps::end_load(*self.client, job); },
          py::arg("job"), release())
      .def("forget_residuals",
           [](PsClient& self) {
             for (const auto& table : self.tables) self.client->forget_residuals(table);
           })
      .def(
          "await_job",
          [](PsClient& self, std::uint64_t number, std::int64_t timeout_ms) {
            return ps::await_job(*self.client, number, self.timeout_of(timeout_ms));
          },
          py::arg("number"), py::arg("timeout_ms") = -1, release());
}

}  // namespace gradring::bind
