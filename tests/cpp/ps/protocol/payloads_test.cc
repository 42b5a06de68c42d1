// What payloads look like on the wire, byte for byte as csrc/wire/ps_frames.h and docs/wire.md say:
// another implementation has nothing else to go by.
#include "ps/protocol/payloads.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "support/ps/shard_rig.h"

namespace gradring::testing::payloads_test {
namespace {

// Little-endian values one after the other, without gaps.
struct Field {
  std::size_t bytes;
  std::uint64_t value;
};
Field u8(std::uint64_t value) {
  return {1, value};
}
Field u32(std::uint64_t value) {
  return {4, value};
}
Field u64(std::uint64_t value) {
  return {8, value};
}
constexpr Field kF64One{8, 0x3FF0000000000000};
constexpr Field kF64None{8, 0};
constexpr Field kF32Half{4, 0x3F000000};

template <typename Bytes_>
void check_is(const Bytes_& bytes, const std::vector<Field>& fields) {
  std::vector<std::byte> expected;
  for (const Field& field : fields)
    for (std::size_t at = 0; at < field.bytes; ++at)
      expected.push_back(static_cast<std::byte>(field.value >> 8 * at));
  CHECK(bytes.size() == expected.size());
  for (std::size_t at = 0; at < std::min(bytes.size(), expected.size()); ++at) {
    CAPTURE(at);
    REQUIRE(bytes[at] == expected[at]);
  }
}

template <typename T>
Bytes bytes_of(const T& item) {
  Bytes bytes;
  ps::put(bytes, item);
  return bytes;
}

kernels::Rule a_rule() {
  kernels::Rule rule;
  rule.kind = kernels::RuleKind::kAdam;
  rule.nesterov = true;
  for (double* value :
       {&rule.lr, &rule.momentum, &rule.dampening, &rule.weight_decay, &rule.lr_decay,
        &rule.initial_accumulator, &rule.alpha, &rule.beta1, &rule.beta2, &rule.eps, &rule.l1,
        &rule.l2, &rule.beta, &rule.clip_value, &rule.clip_norm})
    *value = 0;
  rule.lr = rule.clip_norm = 1;
  return rule;
}

// 123 bytes.
std::vector<Field> fields_of_the_rule() {
  std::vector<Field> fields{u8(static_cast<std::uint64_t>(kernels::RuleKind::kAdam)), u8(1), u8(0),
                            kF64One};
  for (int nth = 0; nth < 13; ++nth) fields.push_back(kF64None);
  fields.push_back(kF64One);
  return fields;
}

std::vector<Field> joined(std::vector<Field> first, const std::vector<Field>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST_CASE("a header") {
  wire::PsHeader header;
  header.type = wire::PsType::kPush;
  header.flags = 17;
  header.codec = wire::RowCodec::kInt8;
  header.count = 2;
  header.layout = 3;
  header.request = 4;
  header.seq = 5;
  header.table = 6;
  header.a = 7;
  header.b = 8;
  header.payload_bytes = 9;
  check_is(wire::encode(header), {u8('G'), u8('R'), u8('P'), u8('S'), u8(1), u8(5), u8(17), u8(3),
                                  u32(2), u32(3), u64(4), u64(5), u64(6), u64(7), u64(8), u64(9)});
}

TEST_CASE("what opens a connection") {
  check_is(ps::encode(ps::Hello{7, 0x1122334455667788}), {u32(7), u64(0x1122334455667788)});
  check_is(ps::encode(ps::Welcome{1, 4, "ab", ""}),
           {u32(1), u32(4), u32(2), u8('a'), u8('b'), u32(0)});
}

TEST_CASE("what stands before ids and rows") {
  check_is(bytes_of(wire::Tail{5, 6}), {u64(2), u64(5), u64(6)});
  check_is(bytes_of(wire::Gate{1, 2, 3, true}), {u64(1), u64(2), u32(3), u32(1)});
  check_is(bytes_of(wire::Round{1, 2}), {u64(1), u64(2)});
  check_is(bytes_of(ps::ClockPayload{3, true, 1}), {u32(3), u32(1), kF64One});
}

TEST_CASE("the numbers of an answer, and which rows were not done") {
  ps::Outcome outcome{1, 2, 3, 4, {}};
  check_is(bytes_of(outcome), {u64(1), u64(2), u64(3), u64(4)});
  outcome.skipped = {5};
  check_is(bytes_of(outcome), {u64(1), u64(2), u64(3), u64(4), u64(5)});
}

TEST_CASE("how far clients have come") {
  check_is(
      ps::encode(std::vector<ps::Position>{{1, 2, 3, {4, 5}}, {6, 7, 8, {}}}),
      {u32(2), u32(1), u64(2), u64(3), u32(2), u64(4), u64(5), u32(6), u64(7), u64(8), u32(0)});
}

TEST_CASE("a rule, and the spec of a table") {
  check_is(bytes_of(a_rule()), joined(fields_of_the_rule(), {u8(0), u8(0), u8(0), u8(0), u8(0)}));
  ps::TableSpec spec;
  spec.name = "ab";
  spec.kind = ps::TableKind::kSparse;
  spec.dim = 3;
  spec.rule = a_rule();
  spec.init = {ps::InitKind::kUniform, 0, 0.5f};
  spec.seed = 5;
  spec.entry = {6, 0.5f};
  spec.unseen_ticks = 7;
  spec.score_decay = 0.5f;
  spec.slot_shift = 32;
  spec.slots = {{8, 1, {9, 0.5f}, 10}};
  std::vector<Field> fields{u32(2), u8('a'), u8('b'), u8(0), u32(3), u64(0)};
  fields = joined(fields, fields_of_the_rule());
  fields = joined(fields, {u8(1), u32(0), kF32Half, u64(5), u32(6), kF32Half, u32(7), kF32Half,
                           u32(32), u32(1), u64(8), kF64One, u32(9), kF32Half, u32(10)});
  std::size_t bytes = 0;
  for (const Field& field : fields) bytes += field.bytes;
  for (; bytes % 8 != 0; ++bytes) fields.push_back(u8(0));
  check_is(bytes_of(spec), fields);
}

TEST_CASE("what a shard answers") {
  ShardRig rig(0, 1, 77);
  Guest guest = enter_with_table(rig, 3);
  const std::uint64_t table = ps::table_id("t");
  rig.ask(guest, push("t", {9}, {0.5f, 0.5f}));
  Request read;
  read.header.type = wire::PsType::kReadRows;
  read.header.table = table;
  read.header.b = 10;
  const ps::Frame rows = rig.ask(guest, read);
  CHECK(rows.header.type == wire::PsType::kWholeRows);
  CHECK(rows.header.seq == 77);
  CHECK(rows.header.b == 0);
  CHECK(rows.header.count == 1);
  // id, stamp; version, steps, writer, tick, score 1, reserved; then the row.
  check_is(rows.payload, {u64(9), u64(1), u32(1), u32(1), u32(3), u32(0), u32(0x3F800000), u32(0),
                          kF32Half, kF32Half});

  Guest saver = rig.enter(5);
  const ps::Frame frozen = rig.ask(saver, freeze(1, Millis{1000}));
  CHECK(frozen.header.b == 77);
  // Its tail was its own number alone.
  check_is(frozen.payload, {u32(1), u32(3), u64(1), u64(2), u32(1), u64(2)});
  // The stamps of no base, then the job.
  check_is(cut(1, "ab").rest, {u32(0), u8('a'), u8('b')});
  const ps::Frame done = rig.ask(saver, cut(1, "ab"));
  check_is(done.payload, {u32(1), u64(table), u64(1)});
}

}  // namespace
}  // namespace gradring::testing::payloads_test
