#include "support/ps/requests.h"

#include <bit>
#include <cstring>

#include "ps/protocol/row_codec.h"

namespace gradring::testing {
namespace {

using wire::PsType;

template <typename Item>
void put_items(Bytes& out, const std::vector<Item>& items) {
  ps::put_bytes(out, std::as_bytes(std::span(items)));
}

Request request(PsType type, std::uint64_t a = 0, std::uint64_t b = 0) {
  Request made;
  made.header.type = type;
  made.header.a = a;
  made.header.b = b;
  return made;
}

void put_rows(Bytes& out, wire::RowCodec codec, const std::vector<float>& values,
              std::size_t rows) {
  if (codec == wire::RowCodec::kFloat32 || rows == 0) return put_items(out, values);
  const std::size_t dim = values.size() / rows;
  const std::size_t at = out.size();
  out.resize(at + ps::encoded_rows_bytes(codec, dim, rows));
  ps::encode_rows(codec, dim, rows, values.data(), nullptr, out.data() + at);
}

std::uint8_t flags_of(const PushWishes& wishes) {
  return static_cast<std::uint8_t>((wishes.returns_rows ? wire::kReturnsRows : 0) |
                                   (wishes.is_last_part ? wire::kIsLastPart : 0) |
                                   (wishes.round ? wire::kHasRound : 0));
}

}  // namespace

ps::TableSpec sum_table(const std::string& name, std::uint32_t dim) {
  ps::TableSpec spec;
  spec.name = name;
  spec.dim = dim;
  return spec;
}

Request make_table(const ps::TableSpec& spec) {
  Request made = request(PsType::kMakeTable);
  made.header.table = ps::table_id(spec.name);
  ps::put(made.rest, spec);
  return made;
}

Request push(const std::string& table, const Ids& ids, const Values& rows,
             const PushWishes& wishes) {
  Request made = request(PsType::kPush, wishes.seen);
  made.header.flags = flags_of(wishes);
  made.header.table = ps::table_id(table);
  made.header.count = static_cast<std::uint32_t>(ids.size());
  if (wishes.round) ps::put(made.rest, *wishes.round);
  made.header.codec = wishes.codec;
  put_items(made.rest, ids);
  put_rows(made.rest, wishes.codec, rows, ids.size());
  return made;
}

Request push_dense(const std::string& table, const Values& values, const PushWishes& wishes) {
  Request made = request(PsType::kPushDense, wishes.seen);
  made.header.flags = flags_of(wishes);
  made.header.table = ps::table_id(table);
  made.header.count = static_cast<std::uint32_t>(values.size());
  made.header.codec = wishes.codec;
  if (wishes.round) ps::put(made.rest, *wishes.round);
  put_rows(made.rest, wishes.codec, values, 1);
  return made;
}

Request clock(std::uint64_t domain, std::uint64_t clock, const ps::ClockPayload& payload) {
  Request made = request(PsType::kClock, domain, clock);
  ps::put(made.rest, payload);
  return made;
}

Request leave(std::uint64_t domain) {
  return request(PsType::kLeave, domain);
}

Request tick(std::uint32_t tick) {
  return request(PsType::kTick, tick);
}

Request shrink(const std::string& table, float least_score, std::uint32_t unseen_ticks) {
  Request made = request(PsType::kShrink, unseen_ticks);
  if (!table.empty()) made.header.table = ps::table_id(table);
  const auto bits = std::bit_cast<std::uint32_t>(least_score);
  ps::put_bytes(made.rest, std::as_bytes(std::span(&bits, 1)));
  return made;
}

Request write_rows(const std::string& table, const std::vector<ps::RowMeta>& metas,
                   const Values& floats, const std::optional<std::uint64_t>& steps) {
  Request made = request(PsType::kWriteRows, steps.value_or(0));
  if (steps) made.header.flags = wire::kTellsSteps;
  made.header.table = ps::table_id(table);
  made.header.count = static_cast<std::uint32_t>(metas.size());
  put_items(made.rest, metas);
  put_items(made.rest, floats);
  return made;
}

Request write_dense(const std::string& table, std::uint64_t steps, const Values& floats) {
  Request made = request(PsType::kWriteRows);
  made.header.flags = wire::kIsDense;
  made.header.table = ps::table_id(table);
  made.header.count = static_cast<std::uint32_t>(floats.size());
  ps::put_bytes(made.rest, std::as_bytes(std::span(&steps, 1)));
  put_items(made.rest, floats);
  return made;
}

Request set_rule(const std::string& table, const kernels::Rule& rule, std::uint64_t number) {
  Request made = request(PsType::kSetRule, number);
  made.header.table = ps::table_id(table);
  ps::put(made.rest, rule);
  return made;
}

Request nothing() {
  return request(PsType::kLeave, ~std::uint64_t{0});
}

Request pull(const std::string& table, const Ids& ids, const std::optional<wire::Gate>& gate) {
  Request made = request(PsType::kPull, 0, 1);
  made.header.table = ps::table_id(table);
  made.header.count = static_cast<std::uint32_t>(ids.size());
  if (gate) {
    made.header.flags = wire::kHasGate;
    ps::put(made.rest, *gate);
  }
  put_items(made.rest, ids);
  return made;
}

Request pull_dense(const std::string& table, const std::optional<wire::Gate>& gate) {
  Request made = request(PsType::kPullDense);
  made.header.table = ps::table_id(table);
  if (gate) {
    made.header.flags = wire::kHasGate;
    ps::put(made.rest, *gate);
  }
  return made;
}

Request pull_changed(const std::string& table, std::uint64_t since, std::uint64_t most) {
  Request made = request(PsType::kPullChanged, since, most);
  made.header.table = ps::table_id(table);
  return made;
}

Request read_rows(const std::string& table, std::uint64_t most) {
  Request made = request(PsType::kReadRows, 0, most);
  made.header.table = ps::table_id(table);
  return made;
}

Request freeze(std::uint64_t cut, Millis limit) {
  return request(PsType::kFreeze, cut, static_cast<std::uint64_t>(limit.count()));
}

Request advance(std::uint64_t cut, Millis limit, const std::vector<ps::Position>& positions) {
  Request made = request(PsType::kAdvance, cut, static_cast<std::uint64_t>(limit.count()));
  made.rest = ps::encode(positions);
  return made;
}

Request cut(std::uint64_t cut, const std::string& text) {
  Request made = request(PsType::kCut, cut);
  const std::uint32_t bases = 0;
  ps::put_bytes(made.rest, std::as_bytes(std::span(&bases, 1)));
  ps::put_bytes(made.rest, std::as_bytes(std::span(text)));
  return made;
}

Request thaw(std::uint64_t cut) {
  return request(PsType::kThaw, cut);
}

Request load(std::uint64_t cut, const std::string& text) {
  Request made = request(PsType::kLoad, cut);
  made.rest = ps::encode_text(text);
  return made;
}

Request job(std::uint64_t cut) {
  return request(PsType::kJob, cut);
}

Bytes hello_payload(std::uint32_t client, std::uint64_t incarnation) {
  return ps::encode(ps::Hello{client, incarnation});
}

ps::Frame arrived(ps::Answer answer) {
  if (answer.shared) answer.frame.payload = *answer.shared;
  answer.frame.header.payload_bytes = answer.frame.payload.size();
  return std::move(answer.frame);
}

Values floats_of(std::span<const std::byte> bytes) {
  Values values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

PulledRows rows_of(const wire::PsHeader& answer, std::span<const std::byte> payload,
                   std::size_t dim) {
  const std::size_t row_bytes = answer.count * dim * sizeof(float);
  if (payload.size() != row_bytes + answer.count * sizeof(std::uint32_t))
    throw ProtocolError(str("rows of ", payload.size(), " bytes for ", answer.count, " ids"));
  PulledRows pulled;
  pulled.rows = floats_of(payload.first(row_bytes));
  pulled.versions.resize(answer.count);
  if (answer.count > 0)
    std::memcpy(pulled.versions.data(), payload.data() + row_bytes, payload.size() - row_bytes);
  return pulled;
}

}  // namespace gradring::testing
