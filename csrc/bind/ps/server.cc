// _core.PsServer: convert, release the GIL, call. gradring/ps documents what servers do.
#include "ps/server/server.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "transport/links/forks.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using ps::Answer;
using ps::Server;
using ps::Shard;

// (shard, cut, is_load, text), or None.
py::object next_job(Server& server, std::int64_t timeout_ms) {
  std::optional<std::pair<std::uint32_t, ps::Job>> job;
  {
    const WithoutGil release;
    job = server.next_job(Millis{timeout_ms});
  }
  if (!job) return py::none();
  return py::make_tuple(job->first, job->second.cut, job->second.is_load,
                        py::bytes(job->second.text));
}

py::object read_piece(Server& server, std::uint32_t shard, std::uint64_t cut,
                      std::uint64_t most_bytes) {
  ps::SnapshotBytes piece;
  piece.all().reserve(static_cast<std::size_t>(most_bytes) + most_bytes / 4);
  bool is_there = false;
  {
    const WithoutGil release;
    server.ask(shard, [&](Shard& owner, std::vector<Answer>&) {
      is_there = owner.next_snapshot_piece(cut, static_cast<std::size_t>(most_bytes), piece);
    });
  }
  if (!is_there && piece.size() == 0) return py::none();
  return py::bytes(reinterpret_cast<const char*>(piece.data()), piece.size());
}

// (bytes, checksum, the first piece.) `fd` stays the caller's.
py::tuple write_snapshot(Server& server, int fd, const std::string& path, std::uint32_t shard,
                         const std::array<std::uint64_t, 3>& shards_cut_base) {
  const auto [shards, cut, base] = shards_cut_base;
  ps::SnapshotWritten written;
  {
    const WithoutGil release;
    written =
        server.write_snapshot({shard, static_cast<std::uint32_t>(shards), cut, base}, {fd, path});
  }
  return py::make_tuple(
      written.bytes, written.crc,
      py::bytes(reinterpret_cast<const char*>(written.front.data()), written.front.size()));
}

template <typename Act>
void ask(Server& server, std::uint32_t shard, const Act& act) {
  const WithoutGil release;
  server.ask(shard, [&](Shard& owner, std::vector<Answer>&) { act(owner); });
}

std::string stats_of_shard(Server& server, std::uint32_t shard) {
  std::string text;
  ask(server, shard, [&](Shard& owner) { text = owner.stats(); });
  return text;
}

void load_piece(Server& server, std::uint32_t shard, std::uint64_t staging,
                const py::object& piece) {
  const Buffer bytes(piece, static_cast<int>(DType::kUInt8), false);
  ask(server, shard, [&](Shard& owner) {
    owner.load_piece({bytes.data(), static_cast<std::size_t>(bytes.count())}, staging);
  });
}

std::shared_ptr<Server> make_server(const std::string& host, int port, int listen_fd,
                                    std::uint32_t threads, std::uint32_t index,
                                    std::uint32_t servers, const py::bytes& secret,
                                    const std::string& tls, const std::string& transport,
                                    const std::string& log_directory, const std::string& fsync,
                                    std::int64_t client_grace_ms, bool waits_to_open,
                                    const std::pair<int, int>& ports) {
  ps::ServerOptions options;
  options.host = host;
  options.port = port;
  options.ports = {ports.first, ports.second};
  options.listen_fd = listen_fd;
  options.threads = threads;
  options.index = index;
  options.servers = servers;
  options.credentials = {secret, transport::parse_encryption(tls)};
  options.mode = mode_of(transport);
  options.log_directory = log_directory;
  options.fsync = fsync;
  options.client_grace = Millis{client_grace_ms};
  options.waits_to_open = waits_to_open;
  const WithoutGil release;
  return transport::make_here<Server>(options);
}

}  // namespace

void register_ps_server(py::module_& module) {
  using release = py::call_guard<WithoutGil>;
  py::class_<Server, std::shared_ptr<Server>>(module, "PsServer")
      .def(py::init(&make_server), py::kw_only(), py::arg("host"), py::arg("port"),
           py::arg("listen_fd"), py::arg("threads"), py::arg("index"), py::arg("servers"),
           py::arg("secret"), py::arg("tls") = "auto", py::arg("transport"),
           py::arg("log_directory"), py::arg("fsync"), py::arg("client_grace_ms") = 5000,
           py::arg("waits_to_open") = false, py::arg("ports") = std::pair(0, 0))
      .def("open", &Server::open, release())
      .def(
          "tell_beginning",
          [](Server& self, std::uint64_t cut, const std::string& place) {
            self.tell_beginning({cut, place});
          },
          py::arg("cut"), py::arg("place"), release())
      .def_property_readonly("address", &Server::address)
      .def_property_readonly("first_shard", &Server::first_shard)
      .def_property_readonly("shards", &Server::shards)
      .def("stats", &stats_of_shard, py::arg("shard"))
      .def("check", &Server::check, release())
      .def("next_job", &next_job, py::arg("timeout_ms"))
      .def("read_piece", &read_piece, py::arg("shard"), py::arg("cut"), py::arg("most_bytes"))
      .def("write_snapshot", &write_snapshot, py::arg("fd"), py::arg("path"), py::arg("shard"),
           py::arg("shards_cut_base"))
      .def(
          "end_snapshot",
          [](Server& self, std::uint32_t shard, std::uint64_t cut) {
            ask(self, shard, [cut](Shard& owner) { owner.end_snapshot(cut); });
          },
          py::arg("shard"), py::arg("cut"))
      .def(
          "begin_load",
          [](Server& self, std::uint32_t shard, std::uint64_t staging) {
            ask(self, shard, [&](Shard& owner) { owner.begin_load(staging); });
          },
          py::arg("shard"), py::arg("staging"))
      .def("load_piece", &load_piece, py::arg("shard"), py::arg("staging"), py::arg("piece"))
      .def(
          "prepare_load",
          [](Server& self, std::uint32_t shard, std::uint64_t staging) {
            ask(self, shard, [&](Shard& owner) { owner.prepare_load(staging); });
          },
          py::arg("shard"), py::arg("staging"))
      .def(
          "commit_load",
          [](Server& self, std::uint32_t shard, std::uint64_t staging) {
            ask(self, shard, [&](Shard& owner) { owner.commit_load(false, staging); });
          },
          py::arg("shard"), py::arg("staging"))
      .def(
          "abandon_load",
          [](Server& self, std::uint32_t shard, std::uint64_t staging) {
            ask(self, shard, [&](Shard& owner) { owner.abandon_load(staging); });
          },
          py::arg("shard"), py::arg("staging"))
      .def("settle", &Server::settle, py::arg("shard"), release())
      .def(
          "finish_job",
          [](Server& self, std::uint32_t shard, std::uint64_t cut, const std::string& result,
             const std::string& error) {
            Failure failure;
            if (!error.empty()) failure = {ErrorKind::kInvalidArgument, -1, error};
            self.finish_job(shard, cut, result, failure);
          },
          py::arg("shard"), py::arg("cut"), py::arg("result"), py::arg("error"), release())
      .def("stop", &Server::stop, release());
}

}  // namespace gradring::bind
