#include "ps/protocol/payloads.h"

#include <array>
#include <bit>

#include "base/config.h"
#include "base/copy_bytes.h"

namespace gradring::ps {
namespace {

using wire::Reader;
using wire::Writer;

constexpr std::uint32_t kSlotsPerTable = 4096;

void put_double(Writer& out, double value) {
  out.put(std::bit_cast<std::uint64_t>(value));
}
double get_double(Reader& in) {
  return std::bit_cast<double>(in.get<std::uint64_t>());
}
void put_float(Writer& out, float value) {
  out.put(std::bit_cast<std::uint32_t>(value));
}
float get_float(Reader& in) {
  return std::bit_cast<float>(in.get<std::uint32_t>());
}

Bytes finish(Writer& out) {
  const std::vector<std::byte> bytes = out.take();
  Bytes result;
  put_bytes(result, bytes);
  return result;
}

// Padded with zeros to a multiple of eight.
void append(Bytes& to, Writer& out) {
  put_bytes(to, out.take());
  to.resize((to.size() + 7) / 8 * 8, std::byte{0});
}

// Requests and answers of a few rows carry little else: without a Writer's memory.
void append_words(Bytes& to, std::span<const std::uint64_t> words) {
  put_bytes(to, std::as_bytes(words));
}

void put(Writer& out, const Entry& entry) {
  out.put(entry.count);
  put_float(out, entry.probability);
}
Entry get_entry(Reader& in) {
  Entry entry;
  entry.count = in.get<std::uint32_t>();
  entry.probability = get_float(in);
  return entry;
}

void put(Writer& out, const kernels::Rule& rule) {
  out.put(rule.kind);
  out.put(static_cast<std::uint8_t>(rule.nesterov));
  out.put(static_cast<std::uint8_t>(rule.centered));
  for (const double value :
       {rule.lr, rule.momentum, rule.dampening, rule.weight_decay, rule.lr_decay,
        rule.initial_accumulator, rule.alpha, rule.beta1, rule.beta2, rule.eps, rule.l1, rule.l2,
        rule.beta, rule.clip_value, rule.clip_norm})
    put_double(out, value);
}
kernels::Rule read_rule(Reader& in) {
  kernels::Rule rule;
  rule.kind = in.get_enum<kernels::RuleKind>(kernels::kRuleKindCount);
  rule.nesterov = in.get<std::uint8_t>() != 0;
  rule.centered = in.get<std::uint8_t>() != 0;
  for (double* value :
       {&rule.lr, &rule.momentum, &rule.dampening, &rule.weight_decay, &rule.lr_decay,
        &rule.initial_accumulator, &rule.alpha, &rule.beta1, &rule.beta2, &rule.eps, &rule.l1,
        &rule.l2, &rule.beta, &rule.clip_value, &rule.clip_norm})
    *value = get_double(in);
  return rule;
}

}  // namespace

void put(Bytes& out, const kernels::Rule& rule) {
  Writer writer;
  put(writer, rule);
  append(out, writer);
}

void put(Bytes& out, const RuleInForce& in_force) {
  append_words(out, std::array<std::uint64_t, 2>{in_force.order.number, in_force.order.client});
  put(out, in_force.rule);
}

void put_bytes(Bytes& out, std::span<const std::byte> bytes) {
  const std::size_t at = out.size();
  out.resize(at + bytes.size());
  copy_bytes(out.data() + at, bytes.data(), bytes.size());
}

Bytes encode(const Hello& hello) {
  Writer out;
  out.put(hello.client);
  out.put(hello.incarnation);
  return finish(out);
}
Hello decode_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Hello hello;
  hello.client = in.get<std::uint32_t>();
  hello.incarnation = in.get<std::uint64_t>();
  in.finish();
  return hello;
}

Bytes encode(const Welcome& welcome) {
  Writer out;
  out.put(welcome.shard);
  out.put(welcome.shards);
  out.put_text(welcome.host_key);
  out.put_text(welcome.unix_name);
  return finish(out);
}
Welcome decode_welcome(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Welcome welcome;
  welcome.shard = in.get<std::uint32_t>();
  welcome.shards = in.get<std::uint32_t>();
  welcome.host_key = in.get_text();
  welcome.unix_name = in.get_text();
  in.finish();
  return welcome;
}

Bytes encode(const std::vector<Position>& positions) {
  Writer out;
  out.put(static_cast<std::uint32_t>(positions.size()));
  for (const Position& position : positions) {
    out.put(position.client);
    out.put(position.incarnation);
    out.put(position.seq);
    out.put(static_cast<std::uint32_t>(position.tail.size()));
    for (const std::uint64_t seq : position.tail) out.put(seq);
  }
  return finish(out);
}
std::vector<Position> decode_positions(std::span<const std::byte> bytes) {
  Reader in(bytes);
  std::vector<Position> positions;
  const std::uint32_t count = in.get_count(limits::kPsClients);
  for (std::uint32_t i = 0; i < count; ++i) {
    Position position;
    position.client = in.get<std::uint32_t>();
    position.incarnation = in.get<std::uint64_t>();
    position.seq = in.get<std::uint64_t>();
    position.tail.resize(in.get_count(limits::kPsShards));
    for (std::uint64_t& seq : position.tail) seq = in.get<std::uint64_t>();
    positions.push_back(std::move(position));
  }
  in.finish();
  return positions;
}

Bytes encode_text(const std::string& text) {
  Bytes bytes;
  put_bytes(bytes, std::as_bytes(std::span(text)));
  return bytes;
}
std::string decode_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void put(Bytes& out, const wire::Tail& tail) {
  const std::uint64_t count = tail.size();
  append_words(out, {&count, 1});
  append_words(out, tail);
}
wire::Tail get_tail(Reader& in) {
  const auto count = in.get<std::uint64_t>();
  if (count > limits::kPsShards)
    throw ProtocolError(str("a tail for ", count, " shards is over the limit"));
  wire::Tail tail(static_cast<std::size_t>(count));
  for (std::uint64_t& seq : tail) seq = in.get<std::uint64_t>();
  return tail;
}

void put(Bytes& out, const wire::Gate& gate) {
  Writer writer;
  writer.put(gate.domain);
  writer.put(gate.clock);
  writer.put(gate.wait_ms);
  writer.put(static_cast<std::uint32_t>(gate.is_round));
  append(out, writer);
}
wire::Gate get_gate(Reader& in) {
  wire::Gate gate;
  gate.domain = in.get<std::uint64_t>();
  gate.clock = in.get<std::uint64_t>();
  gate.wait_ms = in.get<std::uint32_t>();
  gate.is_round = in.get<std::uint32_t>() != 0;
  return gate;
}

void put(Bytes& out, const wire::Round& round) {
  append_words(out, std::array{round.domain, round.clock});
}
wire::Round get_round(Reader& in) {
  wire::Round round;
  round.domain = in.get<std::uint64_t>();
  round.clock = in.get<std::uint64_t>();
  return round;
}

void put(Bytes& out, const Outcome& outcome) {
  const std::array numbers{outcome.refused, outcome.not_admitted, outcome.staleness,
                           outcome.workers};
  append_words(out, numbers);
  append_words(out, outcome.skipped);
}
Outcome get_outcome(Reader& in) {
  Outcome outcome;
  outcome.refused = in.get<std::uint64_t>();
  outcome.not_admitted = in.get<std::uint64_t>();
  outcome.staleness = in.get<std::uint64_t>();
  outcome.workers = in.get<std::uint64_t>();
  return outcome;
}

std::vector<std::uint64_t> get_skipped(Reader& in, std::size_t rows) {
  std::vector<std::uint64_t> words;
  for (std::size_t row = 0; row < rows; row += 64) words.push_back(in.get<std::uint64_t>());
  return words;
}

void put(Bytes& out, const ClockPayload& clock) {
  Writer writer;
  writer.put(clock.workers);
  writer.put(static_cast<std::uint32_t>(clock.is_round));
  put_double(writer, clock.weight);
  append(out, writer);
}
ClockPayload get_clock(Reader& in) {
  ClockPayload clock;
  clock.workers = in.get_count(limits::kWorldSize);
  clock.is_round = in.get<std::uint32_t>() != 0;
  clock.weight = get_double(in);
  return clock;
}

void put(Bytes& out, const TableSpec& spec) {
  Writer writer;
  writer.put_text(spec.name);
  writer.put(spec.kind);
  writer.put(spec.dim);
  writer.put(spec.count);
  put(writer, spec.rule);
  writer.put(spec.init.kind);
  put_float(writer, spec.init.a);
  put_float(writer, spec.init.b);
  writer.put(spec.seed);
  put(writer, spec.entry);
  writer.put(spec.unseen_ticks);
  put_float(writer, spec.score_decay);
  writer.put(spec.slot_shift);
  writer.put(static_cast<std::uint32_t>(spec.slots.size()));
  for (const SlotSettings& slot : spec.slots) {
    writer.put(slot.slot);
    put_double(writer, slot.lr_scale);
    put(writer, slot.entry);
    writer.put(slot.unseen_ticks);
  }
  append(out, writer);
}
TableSpec get_spec(Reader& in) {
  TableSpec spec;
  spec.name = in.get_text();
  spec.kind = in.get_enum<TableKind>(2);
  spec.dim = in.get<std::uint32_t>();
  spec.count = in.get<std::uint64_t>();
  spec.rule = read_rule(in);
  spec.init.kind = in.get_enum<InitKind>(3);
  spec.init.a = get_float(in);
  spec.init.b = get_float(in);
  spec.seed = in.get<std::uint64_t>();
  spec.entry = get_entry(in);
  spec.unseen_ticks = in.get<std::uint32_t>();
  spec.score_decay = get_float(in);
  spec.slot_shift = in.get<std::uint32_t>();
  spec.slots.resize(in.get_count(kSlotsPerTable));
  for (SlotSettings& slot : spec.slots) {
    slot.slot = in.get<std::uint64_t>();
    slot.lr_scale = get_double(in);
    slot.entry = get_entry(in);
    slot.unseen_ticks = in.get<std::uint32_t>();
  }
  return spec;
}

kernels::Rule get_rule(Reader& in) {
  return read_rule(in);
}

RuleInForce get_rule_in_force(Reader& in) {
  RuleInForce in_force;
  in_force.order.number = in.get<std::uint64_t>();
  in_force.order.client = static_cast<std::uint32_t>(in.get<std::uint64_t>());
  in_force.rule = read_rule(in);
  return in_force;
}

void put(Bytes& out, const SavedSpec& saved) {
  put(out, saved.made);
  if (saved.order == RuleOrder{} && saved.rule == saved.made.rule) return;
  put(out, saved.rule);
  append_words(out, std::array<std::uint64_t, 2>{saved.order.number, saved.order.client});
}
SavedSpec get_saved_spec(Reader& in) {
  SavedSpec saved{get_spec(in), {}, {}};
  in.take(in.left() % 8);  // Zeros.
  saved.rule = in.left() > 0 ? read_rule(in) : saved.made.rule;
  in.take(in.left() % 8);
  // Files of before have no order.
  if (in.left() == 0) return saved;
  saved.order.number = in.get<std::uint64_t>();
  saved.order.client = static_cast<std::uint32_t>(in.get<std::uint64_t>());
  return saved;
}

}  // namespace gradring::ps
