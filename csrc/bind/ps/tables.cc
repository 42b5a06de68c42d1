// What _core.PsClient does besides pulling and pushing: makes tables, reads and writes whole rows,
// tells clocks.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <string>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/ps/client.h"
#include "bind/rules.h"
#include "ps/client/changed_call.h"
#include "ps/client/plain_call.h"
#include "ps/client/rule_change.h"
#include "ps/tables/partition.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using ps::PlainCall;
using ps::RemoteTable;
using wire::PsHeader;
using wire::PsType;
using Answers = std::vector<PlainCall::Answered>;

template <typename T>
void read(const py::dict& from, const char* key, T& to) {
  if (from.contains(key)) to = from[key].cast<T>();
}

ps::Entry entry_of(const py::dict& from) {
  ps::Entry entry;
  if (!from.contains("entry")) return entry;
  const auto pair = from["entry"].cast<std::pair<std::uint32_t, float>>();
  return {pair.first, pair.second};
}

ps::SlotSettings slot_of(const py::dict& from) {
  ps::SlotSettings slot;
  read(from, "slot", slot.slot);
  read(from, "lr_scale", slot.lr_scale);
  slot.entry = entry_of(from);
  read(from, "unseen_ticks", slot.unseen_ticks);
  return slot;
}

ps::TableSpec spec_of(const py::dict& from) {
  ps::TableSpec spec;
  spec.name = from["name"].cast<std::string>();
  const auto kind = from["kind"].cast<std::string>();
  if (kind != "sparse" && kind != "dense")
    throw InvalidArgument(str("a table's kind is 'sparse' or 'dense', not '", kind, "'"));
  spec.kind = kind == "dense" ? ps::TableKind::kDense : ps::TableKind::kSparse;
  read(from, "dim", spec.dim);
  read(from, "count", spec.count);
  spec.rule = rule_from(from["rule"].cast<py::dict>());
  if (from.contains("init")) {
    const auto init = from["init"].cast<std::tuple<int, float, float>>();
    if (std::get<0>(init) < 0 || std::get<0>(init) > static_cast<int>(ps::InitKind::kNormal))
      throw InvalidArgument("unknown initializer");
    spec.init = {static_cast<ps::InitKind>(std::get<0>(init)), std::get<1>(init),
                 std::get<2>(init)};
  }
  read(from, "seed", spec.seed);
  spec.entry = entry_of(from);
  read(from, "unseen_ticks", spec.unseen_ticks);
  read(from, "score_decay", spec.score_decay);
  read(from, "slot_shift", spec.slot_shift);
  if (from.contains("slots"))
    for (const auto& slot : from["slots"].cast<py::list>())
      spec.slots.push_back(slot_of(slot.cast<py::dict>()));
  return spec;
}

Answers run(const PsClient& self, const std::shared_ptr<PlainCall>& call, std::int64_t timeout_ms) {
  const Millis timeout = self.timeout_of(timeout_ms);
  const WithoutGil release;
  self.client->run(call, timeout);
  return call->answers();
}

Answers ask_all(const PsClient& self, const std::string& what, const PsHeader& header,
                const Bytes& head, std::int64_t timeout_ms) {
  const auto call = std::make_shared<PlainCall>(what);
  call->add_to_all(self.client->shards(), header, head);
  return run(self, call, timeout_ms);
}

PsHeader header_of(PsType type, std::uint64_t table = 0, std::uint64_t a = 0, std::uint64_t b = 0) {
  PsHeader header;
  header.type = type;
  header.table = table;
  header.a = a;
  header.b = b;
  return header;
}

PsHeader header_on(const RemoteTable& table, PsType type, std::uint64_t a = 0,
                   std::uint64_t b = 0) {
  PsHeader header = header_of(type, 0, a, b);
  table.address(header);
  return header;
}

void require_type(const PlainCall::Answered& answer, PsType type) {
  if (answer.header.type != type) throw ProtocolError("an answer of another kind");
}

py::bytes as_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The number of the table for everything else.
std::size_t make_table(PsClient& self, const py::dict& from, std::int64_t timeout_ms) {
  const ps::TableSpec spec = spec_of(from);
  ps::require_valid(spec);
  Bytes head;
  ps::put(head, spec);
  const std::string what = str("making table '", spec.name, "'");
  const std::uint32_t shards = self.client->shards();
  // First on the shard that its name chooses: of two workers that make it differently at once, one
  // is refused before any other shard has its table.
  const auto first = std::make_shared<PlainCall>(what);
  first->add(ps::shard_of(ps::table_id(spec.name), shards), header_of(PsType::kMakeTable), head);
  run(self, first, timeout_ms);
  Answers made;
  if (shards > 1) made = ask_all(self, what, header_of(PsType::kMakeTable), head, timeout_ms);
  const auto known = std::find_if(self.tables.begin(), self.tables.end(),
                                  [&](const auto& table) { return table->spec == spec; });
  const auto number = static_cast<std::size_t>(known - self.tables.begin());
  if (known == self.tables.end())
    self.tables.push_back(std::make_shared<RemoteTable>(spec, shards));
  if (const auto call = ps::repeat_last_change(*self.table(number), made))
    run(self, call, timeout_ms);
  return number;
}

// Pairs of a table's number and the rule that its servers go on with: one round trip for all, and
// one more where others have changed one of them meanwhile.
void set_rules(PsClient& self, const std::vector<std::pair<std::size_t, py::dict>>& rules,
               std::int64_t timeout_ms) {
  ps::RuleChange change;
  for (const auto& [number, settings] : rules) change.add(self.table(number), rule_from(settings));
  if (rules.empty()) return;
  for (auto call = change.begin(); call; call = change.go_on(*call)) run(self, call, timeout_ms);
}

// (counts, since, more, share), the first two by shard: what others have changed. In its share of
// `room` lie a shard's rows: `count` ids, then as many float32 rows. If `share` is not 0 they had
// no room, and are to be asked for again with so many bytes for each shard.
py::tuple pull_changed(PsClient& self, std::size_t number, const std::vector<std::uint64_t>& since,
                       const py::object& room, std::int64_t timeout_ms) {
  const Buffer memory(room, static_cast<int>(DType::kUInt8), true);
  const auto call = std::make_shared<ps::ChangedCall>(self.table(number), since,
                                                      std::span(memory.data(), memory.count()));
  {
    const Millis timeout = self.timeout_of(timeout_ms);
    const WithoutGil release;
    self.client->run(call, timeout);
  }
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> next;
  bool more = false;
  for (const auto& page : call->pages()) {
    counts.push_back(page.count);
    next.push_back(page.since);
    more |= page.more;
  }
  return py::make_tuple(counts, next, more, call->missing_share_bytes());
}

// (metas, floats, next cursor, more, lineage) of one shard; see RowMeta for the layout of a meta. A
// cursor is of use only as long as the lineage stays: another process lays the rows out anew.
py::tuple read_rows(PsClient& self, std::size_t number, std::uint32_t shard, std::uint64_t cursor,
                    std::uint64_t most, std::int64_t timeout_ms) {
  const auto table = self.table(number);
  if (shard >= self.client->shards())
    throw InvalidArgument(str("read_rows: there is no shard ", shard));
  const auto call = std::make_shared<PlainCall>(str("read of table '", table->spec.name, "'"));
  call->add(shard, header_on(*table, PsType::kReadRows, cursor, most));
  const Answers answers = run(self, call, timeout_ms);
  require_type(answers[0], PsType::kWholeRows);
  const std::span<const std::byte> payload(answers[0].payload);
  const std::size_t metas = answers[0].header.count * sizeof(ps::RowMeta);
  if (payload.size() < metas) throw ProtocolError("whole rows: a payload that is too short");
  return py::make_tuple(as_bytes(payload.first(metas)), as_bytes(payload.subspan(metas)),
                        answers[0].header.a, answers[0].header.b == 1, answers[0].header.seq);
}

void write_rows(PsClient& self, std::size_t number, const py::object& metas,
                const py::object& floats, std::optional<std::uint64_t> steps,
                std::int64_t timeout_ms) {
  const auto table = self.table(number);
  const Buffer heads(metas, static_cast<int>(DType::kUInt8), false);
  const Buffer values(floats, static_cast<int>(DType::kFloat32), false);
  const std::size_t count = static_cast<std::size_t>(heads.count()) / sizeof(ps::RowMeta);
  const std::size_t width =
      table->spec.dim + kernels::state_floats(table->spec.rule, table->spec.dim);
  if (heads.count() % sizeof(ps::RowMeta) != 0 || values.count() != count * width)
    throw InvalidArgument(str("write to table '", table->spec.name, "': ", heads.count(),
                              " bytes of metas and ", values.count(), " floats do not fit rows of ",
                              width, " floats"));
  const auto call = std::make_shared<PlainCall>(str("write to table '", table->spec.name, "'"));
  std::vector<ps::RowMeta> aligned(count);
  if (count > 0) std::memcpy(aligned.data(), heads.data(), count * sizeof(ps::RowMeta));
  ps::add_writes(*call, *table, aligned,
                 {reinterpret_cast<const float*>(values.data()), count * width}, steps);
  run(self, call, timeout_ms);
}

// For each shard (steps, floats): its weights and the fields of its state, each as long as they.
py::list read_dense(PsClient& self, std::size_t number, std::int64_t timeout_ms) {
  const auto table = self.table(number);
  py::list parts;
  for (const auto& answer : ask_all(self, str("read of table '", table->spec.name, "'"),
                                    header_on(*table, PsType::kReadRows), {}, timeout_ms)) {
    require_type(answer, PsType::kWholeRows);
    wire::Reader in(answer.payload);
    const auto steps = in.get<std::uint64_t>();
    parts.append(py::make_tuple(steps, as_bytes(in.take(in.left()))));
  }
  return parts;
}

// Where each shard's part of the table ends, in floats.
std::vector<std::uint64_t> dense_ends(PsClient& self, std::size_t number) {
  const auto table = self.table(number);
  std::vector<std::uint64_t> ends;
  for (std::uint32_t shard = 0; shard < table->shards; ++shard)
    ends.push_back(std::max(ends.empty() ? 0 : ends.back(),
                            ps::dense_range(table->spec, shard, table->shards).end));
  return ends;
}

void write_dense(PsClient& self, std::size_t number, const py::list& parts,
                 std::int64_t timeout_ms) {
  const auto table = self.table(number);
  if (parts.size() != self.client->shards())
    throw InvalidArgument(str("write to table '", table->spec.name, "': ", parts.size(),
                              " parts for ", self.client->shards(), " shards"));
  const auto call = std::make_shared<PlainCall>(str("write to table '", table->spec.name, "'"));
  std::uint32_t shard = 0;
  for (const auto& part : parts) {
    const auto pair = part.cast<std::pair<std::uint64_t, py::object>>();
    const Buffer floats(pair.second, static_cast<int>(DType::kFloat32), false);
    PsHeader header = header_on(*table, PsType::kWriteRows);
    header.flags = wire::kIsDense;
    header.count = static_cast<std::uint32_t>(floats.count());
    Bytes head;
    ps::put_bytes(head, std::as_bytes(std::span(&pair.first, 1)));
    ps::put_bytes(head, {floats.data(), static_cast<std::size_t>(floats.count()) * sizeof(float)});
    call->add(shard++, header, std::move(head));
  }
  run(self, call, timeout_ms);
}

std::uint64_t most_workers(const Answers& answers) {
  std::uint64_t most = 0;
  for (const auto& answer : answers) {
    wire::Reader in(answer.payload);
    most = std::max(most, ps::get_outcome(in).workers);
  }
  return most;
}

std::uint64_t sum_of_rows(const Answers& answers) {
  std::uint64_t rows = 0;
  for (const auto& answer : answers) {
    wire::Reader in(answer.payload);
    rows += ps::get_outcome(in).workers;
  }
  return rows;
}

// The living workers of the domain.
std::uint64_t clock(PsClient& self, std::uint64_t domain, std::uint64_t value,
                    std::uint32_t workers, int kind, double weight, std::int64_t timeout_ms) {
  Bytes head;
  ps::put(head, ps::ClockPayload{workers, kind == 1, weight});
  return most_workers(
      ask_all(self, "clock", header_of(PsType::kClock, 0, domain, value), head, timeout_ms));
}

std::uint64_t shrink(PsClient& self, std::uint64_t unseen_ticks, float least_score,
                     const std::optional<std::size_t>& number, std::int64_t timeout_ms) {
  Bytes head;
  const auto bits = std::bit_cast<std::uint32_t>(least_score);
  ps::put_bytes(head, std::as_bytes(std::span(&bits, 1)));
  PsHeader header = header_of(PsType::kShrink, 0, unseen_ticks);
  if (number) self.table(*number)->address(header);
  return sum_of_rows(ask_all(self, "shrink", header, head, timeout_ms));
}

std::vector<std::string> stats(PsClient& self, std::int64_t timeout_ms) {
  std::vector<std::string> texts;
  for (const auto& answer : ask_all(self, "stats", header_of(PsType::kStats), {}, timeout_ms)) {
    require_type(answer, PsType::kText);
    texts.push_back(ps::decode_text(answer.payload));
  }
  return texts;
}

}  // namespace

void register_ps_tables(py::class_<PsClient>& type) {
  type.def("make_table", &make_table, py::arg("spec"), py::arg("timeout_ms") = -1)
      .def("set_rules", &set_rules, py::arg("rules"), py::arg("timeout_ms") = -1)
      .def("pull_changed", &pull_changed, py::arg("table"), py::arg("since"), py::arg("room"),
           py::arg("timeout_ms") = -1)
      .def("read_rows", &read_rows, py::arg("table"), py::arg("shard"), py::arg("cursor"),
           py::arg("most"), py::arg("timeout_ms") = -1)
      .def("write_rows", &write_rows, py::arg("table"), py::arg("metas"), py::arg("floats"),
           py::arg("steps") = py::none(), py::arg("timeout_ms") = -1)
      .def("read_dense", &read_dense, py::arg("table"), py::arg("timeout_ms") = -1)
      .def("dense_ends", &dense_ends, py::arg("table"))
      .def("write_dense", &write_dense, py::arg("table"), py::arg("parts"),
           py::arg("timeout_ms") = -1)
      .def("clock", &clock, py::arg("domain"), py::arg("clock"), py::arg("workers"),
           py::arg("kind"), py::arg("weight") = 1.0, py::arg("timeout_ms") = -1)
      .def(
          "leave",
          [](PsClient& self, std::uint64_t domain, std::int64_t timeout_ms) {
            ask_all(self, "leave", header_of(PsType::kLeave, 0, domain), {}, timeout_ms);
          },
          py::arg("domain"), py::arg("timeout_ms") = -1)
      .def(
          "tick",
          [](PsClient& self, std::uint64_t value, std::int64_t timeout_ms) {
            return sum_of_rows(
                ask_all(self, "tick", header_of(PsType::kTick, 0, value), {}, timeout_ms));
          },
          py::arg("value"), py::arg("timeout_ms") = -1)
      .def("shrink", &shrink, py::arg("unseen_ticks"), py::arg("least_score"),
           py::arg("table") = py::none(), py::arg("timeout_ms") = -1)
      .def("stats", &stats, py::arg("timeout_ms") = -1);
  register_ps_cuts(type);
}

}  // namespace gradring::bind
