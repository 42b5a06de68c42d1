// The compiled module: bare functions and classes. Names, defaults and documentation are in the
// Python package above it.
#include "bind/module.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "base/tallies.h"
#include "bind/gil.h"
#include "collectives/communicator/communicator.h"
#include "transport/joining/handshake.h"
#include "transport/links/interrupts.h"
#include "transport/links/socket.h"
#include "transport/links/traffic.h"
#include "transport/membership/inspection.h"

namespace gradring::bind {

transport::TransportMode mode_of(const std::string& text) {
  using transport::TransportMode;
  if (text == "auto") return TransportMode::kAuto;
  if (text == "shm") return TransportMode::kShm;
  if (text == "tcp") return TransportMode::kTcp;
  throw InvalidArgument(str("transport '", text, "' is none of auto, shm, tcp"));
}

}  // namespace gradring::bind

namespace {

namespace py = pybind11;
using gradring::Millis;
using gradring::Rank;
using gradring::transport::JoinOptions;

std::shared_ptr<gradring::collectives::Communicator> join(
    Rank rank, Rank world_size, const std::string& rendezvous, const py::bytes& secret,
    const std::string& tls, const std::string& transport, std::int64_t timeout_ms,
    std::int64_t heartbeat_timeout_ms, const std::string& interface, int listen_fd,
    const std::string& host_label, std::size_t record_operations,
    const std::string& record_directory, const std::string& trace_directory,
    const gradring::bind::Costs& costs, std::uint32_t link_mbit, const std::pair<int, int>& ports,
    std::uint32_t streams) {
  if (streams == 0 || streams > gradring::limits::kStreams)
    throw gradring::InvalidArgument(gradring::str(
        "streams=", streams, " is not a number from 1 to ", gradring::limits::kStreams));
  JoinOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.is_open_alone = !rendezvous.empty();
  if (!rendezvous.empty()) options.rendezvous = gradring::transport::parse_host_port(rendezvous);
  options.credentials = {secret, gradring::transport::parse_encryption(tls)};
  options.mode = gradring::bind::mode_of(transport);
  options.timeout = Millis{timeout_ms};
  options.heartbeat_timeout = Millis{heartbeat_timeout_ms};
  options.interface = interface;
  options.listen_fd = listen_fd;
  options.ports = {ports.first, ports.second};
  options.streams = streams;
  options.host_label = host_label;
  options.link_mbit = link_mbit;
  options.costs = gradring::bind::profile_of(costs);
  options.record = {record_operations, record_directory, trace_directory};
  options.check_interrupt = [] { gradring::transport::run_interrupt_check(); };
  const gradring::bind::WithoutGil release;
  // Rank -1: a job that runs already.
  return rank < 0 ? gradring::collectives::Communicator::join_running(options)
                  : gradring::collectives::Communicator::join(options);
}

// A rank's record, and how far its clock is ahead of ours, in nanoseconds, give or take the last.
py::tuple inspect(const std::string& address, const py::bytes& secret, std::int64_t timeout_ms,
                  const std::string& tls) {
  constexpr int kQuestions = 8;
  const gradring::transport::Credentials known{secret, gradring::transport::parse_encryption(tls)};
  std::string record;
  gradring::transport::ClockOffset clock;
  {
    const gradring::bind::WithoutGil release;
    gradring::transport::Inspection rank(address, known,
                                         gradring::Clock::now() + Millis{timeout_ms});
    clock = rank.clock(kQuestions);
    record = rank.record();
  }
  return py::make_tuple(py::bytes(record), clock.offset, clock.error);
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  gradring::bind::register_end_of_interpreter();
  gradring::bind::register_deletions();
  gradring::bind::register_errors(module);
  gradring::bind::register_communicator(module);
  gradring::bind::register_costs(module);
  gradring::bind::register_gpu_compressed(module);
  gradring::bind::register_gpu_hosts(module);
  gradring::bind::register_gpu_kernels(module);
  gradring::bind::register_gpu_nccl(module);
  gradring::bind::register_gpu_plugin(module);
  gradring::bind::register_gpu_runtime(module);
  gradring::bind::register_gpu_staged(module);
  gradring::bind::register_gradients(module);
  gradring::bind::register_ps_client(module);
  gradring::bind::register_ps_probe(module);
  gradring::bind::register_ps_server(module);
  gradring::bind::register_quick(module);
  gradring::bind::register_tensors(module);
  gradring::bind::register_replicas(module);
  gradring::bind::register_interrupts();
  gradring::bind::register_ps_files(module);
  gradring::bind::register_rules(module);
  gradring::bind::register_spans(module);
  module.attr("version") = GRADRING_VERSION;
  module.attr("wire_version") = gradring::transport::kSpokenVersion;
  module.attr("compiler") = __VERSION__;
  module.def("inspect", &inspect, py::arg("address"), py::arg("secret"), py::arg("timeout_ms"),
             py::arg("tls") = "auto");
  module.def("join", &join, py::kw_only(), py::arg("rank"), py::arg("world_size"),
             py::arg("rendezvous"), py::arg("secret"), py::arg("tls") = "auto",
             py::arg("transport"), py::arg("timeout_ms"), py::arg("heartbeat_timeout_ms"),
             py::arg("interface"), py::arg("listen_fd"), py::arg("host_label") = "",
             py::arg("record_operations") = 1024, py::arg("record_directory") = "",
             py::arg("trace_directory") = "", py::arg("costs") = gradring::bind::Costs(),
             py::arg("link_mbit") = 0, py::arg("ports") = std::pair(0, 0), py::arg("streams") = 1);
  module.def("tcp_traffic", [] {
    const auto& traffic = gradring::transport::tcp_traffic;
    return py::make_tuple(traffic.sent.load(), traffic.received.load());
  });
  module.def("operation_tallies", [] {
    py::list told;
    for (const auto& tally : gradring::OperationTallies::of_process().read())
      told.append(py::make_tuple(std::string(gradring::name(tally.op)), tally.operations,
                                 tally.bytes, tally.nanos));
    return told;
  });
  // For the benches' plain streams.
  module.def(
      "tune_data_socket", [](int fd) { gradring::transport::tune_data_socket(fd); }, py::arg("fd"));
}
