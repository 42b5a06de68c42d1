// _core.PsClient: convert, release the GIL, call. gradring/ps documents tables and what is done to
// them.
#include "bind/ps/client.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/ps/work.h"
#include "ps/client/dense_calls.h"
#include "ps/client/row_calls.h"
#include "transport/links/forks.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using ps::Call;
using ps::Client;
using ps::RemoteTable;
using GateTuple = std::optional<std::tuple<std::uint64_t, std::uint64_t, bool>>;
using Seen = std::vector<std::uint64_t>;  // By shard: pushes to a table.
using RoundTuple = std::optional<std::tuple<std::uint64_t, std::uint64_t>>;

// How long past its own end a server may take to say who is missing at a gate.
constexpr Millis kGateGrace{2000};

wire::RowCodec codec_of(int codec) {
  if (codec < 0 || codec >= wire::kRowCodecCount) throw InvalidArgument("unknown row codec");
  return static_cast<wire::RowCodec>(codec);
}

std::optional<wire::Gate> gate_of(const GateTuple& gate, Millis timeout) {
  if (!gate) return std::nullopt;
  const auto wait = static_cast<std::uint32_t>(std::min<std::int64_t>(timeout.count(), 0xffffffff));
  return wire::Gate{std::get<0>(*gate), std::get<1>(*gate), wait, std::get<2>(*gate)};
}

std::optional<wire::Round> round_of(const RoundTuple& round) {
  if (!round) return std::nullopt;
  return wire::Round{std::get<0>(*round), std::get<1>(*round)};
}

// int64 or uint64: the bits are the id.
Buffer ids_buffer(const py::handle& object) {
  return Buffer(object, static_cast<int>(DType::kInt64), false);
}
Buffer float_buffer(const py::handle& object, bool is_written) {
  return Buffer(object, static_cast<int>(DType::kFloat32), is_written);
}
std::span<const std::uint64_t> as_ids(const Buffer& buffer) {
  return {reinterpret_cast<const std::uint64_t*>(buffer.data()),
          static_cast<std::size_t>(buffer.count())};
}
float* as_floats(const Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}

void require_rows(const RemoteTable& table, const Buffer& ids, const Buffer& rows,
                  const char* which) {
  if (rows.count() != ids.count() * table.spec.dim)
    throw InvalidArgument(str("table '", table.spec.name, "': ", which, " has ", rows.count(),
                              " floats, ", ids.count(), " ids of dim ", table.spec.dim, " need ",
                              ids.count() * table.spec.dim));
}

void require_count(const RemoteTable& table, const Buffer& floats, const char* which) {
  if (floats.count() != table.spec.count)
    throw InvalidArgument(str("table '", table.spec.name, "': ", which, " has ", floats.count(),
                              " floats, the table has ", table.spec.count));
}

void require_same_length(std::size_t tables, std::size_t other, const char* which) {
  if (tables != other) throw InvalidArgument(str(tables, " tables but ", other, " ", which));
}

const Seen& checked_seen(const RemoteTable& table, const Seen& seen) {
  if (seen.size() != table.shards)
    throw InvalidArgument(str("table '", table.spec.name, "': ", seen.size(),
                              " counts of pushes for ", table.shards, " shards"));
  return seen;
}

// For each shard the pushes to the table that this client's last pull from there has seen: what a
// later push takes as `seen`.
Seen seen_of(const PsClient& self, std::size_t number) {
  const auto& table = self.table(number);
  Seen seen(table->shards);
  for (std::uint32_t shard = 0; shard < table->shards; ++shard) seen[shard] = table->seen(shard);
  return seen;
}

// Runs a call here, or starts it; what it says comes from `result`.
py::object perform(const std::shared_ptr<Client>& client, const std::shared_ptr<Call>& call,
                   Millis timeout, bool in_background, std::vector<Buffer> buffers,
                   PsWork::Result result) {
  if (in_background) {
    std::uint64_t bytes = 0;
    for (const Buffer& buffer : buffers) bytes += buffer.bytes();
    call->note_array_bytes(bytes);
    {
      const WithoutGil release;
      client->start(call, timeout);
    }
    return py::cast(PsWork(client, call, std::move(buffers), std::move(result)));
  }
  {
    const WithoutGil release;
    client->run(call, timeout);
  }
  return result(*call);
}

// Without the GIL: a large batch takes milliseconds.
template <typename Kind, typename... Arguments>
std::shared_ptr<Kind> make_call(Arguments&&... arguments) {
  const WithoutGil release;
  return std::make_shared<Kind>(std::forward<Arguments>(arguments)...);
}

py::object pull(PsClient& self, const std::vector<std::size_t>& tables, const py::list& ids,
                const py::list& outs, int codec, const GateTuple& gate, std::int64_t timeout_ms,
                bool in_background, bool is_hint) {
  require_same_length(tables.size(), ids.size(), "arrays of ids");
  require_same_length(tables.size(), outs.size(), "arrays for rows");
  const Millis timeout = self.timeout_of(timeout_ms);
  std::vector<Buffer> buffers;
  std::vector<ps::PullItem> items;
  for (std::size_t at = 0; at < tables.size(); ++at) {
    const auto table = self.table(tables[at]);
    Buffer wanted = ids_buffer(ids[at]);
    Buffer rows = float_buffer(outs[at], true);
    require_rows(*table, wanted, rows, "out");
    items.push_back({table, as_ids(wanted), as_floats(rows)});
    buffers.push_back(std::move(wanted));
    buffers.push_back(std::move(rows));
  }
  const ps::PullOptions options{codec_of(codec), gate_of(gate, timeout)};
  const auto call = make_call<ps::PullCall>(std::move(items), options);
  if (is_hint) call->make_hint();
  return perform(self.client, call, gate ? timeout + kGateGrace : timeout, in_background,
                 std::move(buffers),
                 [](Call& done) { return py::cast(static_cast<ps::PullCall&>(done).seen()); });
}

py::object push(PsClient& self, const std::vector<std::size_t>& tables, const py::list& ids,
                const py::list& gradients, int codec, const RoundTuple& round,
                const std::optional<py::list>& returns_rows,
                const std::optional<std::vector<Seen>>& seen, bool ids_are_distinct,
                std::int64_t timeout_ms, bool in_background, bool goes_along) {
  require_same_length(tables.size(), ids.size(), "arrays of ids");
  require_same_length(tables.size(), gradients.size(), "arrays of gradients");
  if (returns_rows) require_same_length(tables.size(), returns_rows->size(), "arrays for rows");
  if (seen) require_same_length(tables.size(), seen->size(), "counts of pushes seen");
  std::vector<Buffer> buffers;
  std::vector<ps::PushItem> items;
  for (std::size_t at = 0; at < tables.size(); ++at) {
    const auto table = self.table(tables[at]);
    Buffer wanted = ids_buffer(ids[at]);
    Buffer rows = float_buffer(gradients[at], false);
    require_rows(*table, wanted, rows, "the gradient");
    ps::PushItem item{table, as_ids(wanted), as_floats(rows), nullptr, {}};
    if (seen) item.seen = checked_seen(*table, (*seen)[at]);
    if (returns_rows) {
      Buffer after = float_buffer((*returns_rows)[at], true);
      require_rows(*table, wanted, after, "returns_rows");
      item.rows_after = as_floats(after);
      buffers.push_back(std::move(after));
    }
    items.push_back(std::move(item));
    buffers.push_back(std::move(wanted));
    buffers.push_back(std::move(rows));
  }
  const ps::PushOptions options{codec_of(codec), round_of(round), ids_are_distinct};
  const auto call = make_call<ps::PushCall>(std::move(items), options);
  if (goes_along) call->go_along();
  return perform(self.client, call, self.timeout_of(timeout_ms), in_background, std::move(buffers),
                 [](Call& done) { return py::cast(static_cast<ps::PushCall&>(done).report()); });
}

py::object pull_dense(PsClient& self, std::size_t number, const py::object& out, int codec,
                      const GateTuple& gate, std::int64_t timeout_ms, bool in_background,
                      bool is_hint) {
  const auto table = self.table(number);  // Others may make tables while the GIL is let go.
  const Millis timeout = self.timeout_of(timeout_ms);
  std::vector<Buffer> buffers;
  buffers.push_back(float_buffer(out, true));
  require_count(*table, buffers[0], "out");
  const auto call = make_call<ps::PullDenseCall>(table, as_floats(buffers[0]), codec_of(codec),
                                                 gate_of(gate, timeout));
  if (is_hint) call->make_hint();
  return perform(
      self.client, call, gate ? timeout + kGateGrace : timeout, in_background, std::move(buffers),
      [](Call& done) { return py::cast(static_cast<ps::PullDenseCall&>(done).version()); });
}

py::object push_dense(PsClient& self, std::size_t number, const py::object& gradient, int codec,
                      const RoundTuple& round, const py::object& returns_rows,
                      const std::optional<Seen>& seen, std::int64_t timeout_ms, bool in_background,
                      bool goes_along) {
  const auto table = self.table(number);
  std::vector<Buffer> buffers;
  buffers.push_back(float_buffer(gradient, false));
  require_count(*table, buffers[0], "the gradient");
  ps::PushDenseCall::Arrays arrays{as_floats(buffers[0]), nullptr, {}};
  if (seen) arrays.seen = checked_seen(*table, *seen);
  if (!returns_rows.is_none()) {
    buffers.push_back(float_buffer(returns_rows, true));
    require_count(*table, buffers[1], "returns_rows");
    arrays.rows_after = as_floats(buffers[1]);
  }
  const auto call = make_call<ps::PushDenseCall>(table, arrays, codec_of(codec), round_of(round));
  if (goes_along) call->go_along();
  return perform(
      self.client, call, self.timeout_of(timeout_ms), in_background, std::move(buffers),
      [](Call& done) { return py::cast(static_cast<ps::PushDenseCall&>(done).report()); });
}

std::unique_ptr<PsClient> make_client(const std::vector<std::string>& servers,
                                      const py::bytes& secret, const std::string& tls,
                                      std::uint32_t client, const std::string& transport,
                                      std::int64_t timeout_ms) {
  ps::ClientOptions options;
  options.servers = servers;
  options.credentials = {secret, transport::parse_encryption(tls)};
  options.client = client;
  options.mode = mode_of(transport);
  options.timeout = Millis{timeout_ms};
  const WithoutGil release;
  auto made = std::make_unique<PsClient>();
  made->client = transport::make_here<Client>(options);
  return made;
}

}  // namespace

const std::shared_ptr<RemoteTable>& PsClient::table(std::size_t number) const {
  if (number >= tables.size()) throw InvalidArgument(str("there is no table ", number));
  return tables[number];
}

Millis PsClient::timeout_of(std::int64_t timeout_ms) const {
  return timeout_ms < 0 ? client->timeout() : Millis{timeout_ms};
}

void register_ps_client(py::module_& module) {
  using release = py::call_guard<WithoutGil>;
  py::class_<PsWork>(module, "PsWork")
      .def("wait", &PsWork::wait, py::arg("timeout_ms") = -1)
      .def("abandon", &PsWork::abandon)
      .def("done", &PsWork::done)
      .def("failed", &PsWork::failed);
  py::class_<ps::PushReport>(module, "PushReport")
      .def_readonly("rows", &ps::PushReport::rows)
      .def_readonly("refused", &ps::PushReport::refused)
      .def_readonly("not_admitted", &ps::PushReport::not_admitted)
      .def_readonly("staleness", &ps::PushReport::staleness);

  auto type = py::class_<PsClient>(module, "PsClient");
  type.def(py::init(&make_client), py::kw_only(), py::arg("servers"), py::arg("secret"),
           py::arg("tls") = "auto", py::arg("client"), py::arg("transport"), py::arg("timeout_ms"))
      .def("pull", &pull, py::arg("tables"), py::arg("ids"), py::arg("outs"), py::kw_only(),
           py::arg("codec") = 0, py::arg("gate") = py::none(), py::arg("timeout_ms") = -1,
           py::arg("in_background") = false, py::arg("is_hint") = false)
      .def("push", &push, py::arg("tables"), py::arg("ids"), py::arg("gradients"), py::kw_only(),
           py::arg("codec") = 0, py::arg("round") = py::none(),
           py::arg("returns_rows") = py::none(), py::arg("seen") = py::none(),
           py::arg("ids_are_distinct") = false, py::arg("timeout_ms") = -1,
           py::arg("in_background") = false, py::arg("goes_along") = false)
      .def("pull_dense", &pull_dense, py::arg("table"), py::arg("out"), py::kw_only(),
           py::arg("codec") = 0, py::arg("gate") = py::none(), py::arg("timeout_ms") = -1,
           py::arg("in_background") = false, py::arg("is_hint") = false)
      .def("push_dense", &push_dense, py::arg("table"), py::arg("gradient"), py::kw_only(),
           py::arg("codec") = 0, py::arg("round") = py::none(),
           py::arg("returns_rows") = py::none(), py::arg("seen") = py::none(),
           py::arg("timeout_ms") = -1, py::arg("in_background") = false,
           py::arg("goes_along") = false)
      .def("seen", &seen_of, py::arg("table"))
      .def(
          "flush",
          [](PsClient& self, std::int64_t timeout_ms) {
            self.client->flush(self.timeout_of(timeout_ms));
          },
          py::arg("timeout_ms") = -1, release())
      .def(
          "close", [](PsClient& self) { self.client->close(); }, release())
      .def_property_readonly("is_closed", [](PsClient& self) { return self.client->is_closed(); })
      .def_property_readonly("shards", [](PsClient& self) { return self.client->shards(); })
      .def_property_readonly("bytes_sent", [](PsClient& self) { return self.client->bytes_sent(); })
      .def_property_readonly("bytes_received",
                             [](PsClient& self) { return self.client->bytes_received(); });
  register_ps_tables(type);
}

}  // namespace gradring::bind
