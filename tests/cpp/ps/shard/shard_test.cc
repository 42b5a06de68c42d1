// A shard's numbered requests: each is done once, in order, whatever arrives twice, too early or
// from a process that was replaced; and bytes that make no sense change nothing.
#include "ps/shard/shard.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "support/ps/shard_rig.h"

namespace gradring::testing::shard_test {
namespace {

using wire::PsType;

TEST_CASE("a push that comes twice is answered twice and done once") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  ps::Frame frame = rig.frame_of(guest, push("t", {5, 9}, {1, 2, 3, 4}));
  for (int time = 0; time < 3; ++time) {
    const auto answers = rig.send_frame(guest, frame);
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].frame.header.type == PsType::kDone);
    CHECK(answers[0].frame.header.a == 1);  // Pushes of the table.
  }
  CHECK(pulled(rig, guest, {5, 9, 6}) == Values{1, 2, 3, 4, 0, 0});
  CHECK(rig.journal.records.size() == 2);
}

TEST_CASE("what comes too early is refused with how far the shard is, and changes nothing") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame second = rig.frame_of(guest, push("t", {5}, {1, 1}));
  const ps::Frame third = rig.frame_of(guest, push("t", {5}, {2, 2}));
  const auto answers = rig.send_frame(guest, third);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].frame.header.type == PsType::kOutOfOrder);
  CHECK(answers[0].frame.header.b == 1);
  // So is a pull that wants to see it.
  CHECK(rig.ask(guest, pull("t", {5})).header.type == PsType::kOutOfOrder);
  rig.send_frame(guest, second);
  rig.send_frame(guest, third);
  CHECK(pulled(rig, guest, {5}) == Values{3, 3});
}

TEST_CASE("after a new connection the same client goes on where it was") {
  ShardRig rig;
  Guest before = enter_with_table(rig, 0);
  rig.ask(before, push("t", {5}, {1, 1}));
  Guest after = rig.enter(0);
  CHECK(after.seq == 2);
  // What was still under way on the old connection is not taken any more.
  const ps::Frame late = rig.ask(before, push("t", {5}, {7, 7}));
  CHECK(error_of(late) == ErrorKind::kClosed);
  rig.ask(after, push("t", {5}, {1, 1}));
  CHECK(pulled(rig, after, {5}) == Values{2, 2});
}

TEST_CASE("a hello that comes late does not take over from the connection after it") {
  ShardRig rig;
  Guest late;
  rig.shard().connected(late.connection, rig.now);
  Guest guest = enter_with_table(rig, 0);
  CHECK(guest.connection > late.connection);
  ps::Frame hello;
  hello.payload = hello_payload(0, 1);
  CHECK(error_of(rig.send_frame(late, std::move(hello))[0].frame) == ErrorKind::kClosed);
  CHECK(error_of(rig.ask(late, pull("t", {5}))) == ErrorKind::kClosed);
  rig.ask(guest, push("t", {5}, {1, 1}));
  CHECK(pulled(rig, guest, {5}) == Values{1, 1});
}

TEST_CASE("a later process takes over a client's number, and the earlier one is refused") {
  ShardRig rig;
  Guest first = enter_with_table(rig, 3, 100);
  rig.ask(first, push("t", {5}, {1, 1}));
  Guest second = rig.enter(3, 200);
  CHECK(second.seq == 0);
  CHECK(error_of(rig.ask(first, push("t", {5}, {1, 1}))) == ErrorKind::kClosed);
  CHECK(error_of(rig.ask(first, pull("t", {5}))) == ErrorKind::kClosed);
  CHECK_THROWS_AS(rig.enter(3, 100), Closed);
  CHECK(error_of(rig.ask(second, push("t", {5}, {4, 4}))) == ErrorKind::kNone);
  CHECK(pulled(rig, second, {5}) == Values{5, 5});
}

TEST_CASE("a failed change is answered as failed each time it comes") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame frame = rig.frame_of(guest, push("t", {5, 6}, {1, 2, 3}));
  const auto first = rig.send_frame(guest, frame);
  CHECK(error_of(first[0].frame) == ErrorKind::kInvalidArgument);
  // Others follow; then the client comes back and does not know how it went.
  for (int i = 0; i < 10; ++i) rig.ask(guest, push("t", {5}, {1, 1}));
  Guest again = rig.enter(0);
  const auto second = rig.send_frame(again, frame);
  CHECK(error_of(second[0].frame) == ErrorKind::kInvalidArgument);
  CHECK(text_of(second[0].frame) == text_of(first[0].frame));
  CHECK(pulled(rig, again, {5}) == Values{10, 10});
}

TEST_CASE("as many failures are remembered as one client can have under way") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  const ps::Frame oldest = rig.frame_of(guest, push("none", {5}, {1, 2}));
  rig.send_frame(guest, oldest);
  for (int i = 1; i < 256; ++i) rig.ask(guest, push("none", {5}, {1, 2}));
  CHECK(error_of(rig.send_frame(guest, oldest)[0].frame) == ErrorKind::kInvalidArgument);
}

TEST_CASE("two specs under one name are a mismatch, the same spec twice is not") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  Guest other = rig.enter(1);
  CHECK(error_of(rig.ask(other, make_table(sum_table("t", kSumsDim)))) == ErrorKind::kNone);
  const ps::Frame answer = rig.ask(other, make_table(sum_table("t", kSumsDim + 1)));
  CHECK(error_of(answer) == ErrorKind::kMismatch);
  CHECK(text_of(answer).find("dim") != std::string::npos);
}

ps::TableSpec momentum_table(double lr) {
  ps::TableSpec spec = sum_table("m", 1);
  spec.rule = {.kind = kernels::RuleKind::kSgd, .lr = lr, .momentum = 0.5};
  return spec;
}

TEST_CASE("other settings of a rule hold from when they are set, and a repeated request is over") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  ps::TableSpec dense = momentum_table(1);
  dense.name = "d";
  dense.kind = ps::TableKind::kDense;
  dense.count = 1;
  rig.ask(guest, make_table(momentum_table(1)));
  rig.ask(guest, make_table(dense));
  const auto value = [&] {
    const ps::Frame answer = rig.ask(guest, pull("m", {5}));
    return rows_of(answer.header, answer.payload, 1).rows[0];
  };
  const auto step = [&] {
    rig.ask(guest, push("m", {5}, {1}));
    rig.ask(guest, push_dense("d", {1}));
  };
  step();  // The momentum is 1.
  CHECK(value() == -1);
  const ps::Frame halved = rig.frame_of(guest, set_rule("m", momentum_table(0.5).rule));
  rig.send_frame(guest, halved);
  rig.ask(guest, set_rule("d", momentum_table(0.5).rule));
  step();  // It is 1.5.
  CHECK(value() == -1.75);
  rig.ask(guest, set_rule("m", momentum_table(0.25).rule));
  CHECK(error_of(rig.send_frame(guest, halved)[0].frame) == ErrorKind::kNone);
  step();  // 1.75, by a quarter: the request that came again set nothing.
  CHECK(value() == -2.1875);
  const ps::Frame answer = rig.ask(guest, pull_dense("d"));
  CHECK(floats_of(answer.payload) == Values{-2.625});
}

TEST_CASE("a table is found by the settings that it was made with, and by those in force") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(momentum_table(1)));
  rig.ask(guest, set_rule("m", momentum_table(0.5).rule));
  Guest other = rig.enter(1);
  CHECK(error_of(rig.ask(other, make_table(momentum_table(1)))) == ErrorKind::kNone);
  CHECK(error_of(rig.ask(other, make_table(momentum_table(0.5)))) == ErrorKind::kNone);
  const ps::Frame answer = rig.ask(other, make_table(momentum_table(0.25)));
  CHECK(error_of(answer) == ErrorKind::kMismatch);
  CHECK(text_of(answer).find("sgd with lr=1 there, 0.25 here") != std::string::npos);
}

TEST_CASE("settings that a slot's rate makes senseless are refused, and all slots keep theirs") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  ps::TableSpec spec = sum_table("m", 1);
  spec.rule = {.kind = kernels::RuleKind::kSgd, .lr = 1};
  spec.slot_shift = 32;
  spec.slots = {{1, 2, {}, 0}, {2, 1e30, {}, 0}};
  rig.ask(guest, make_table(spec));
  const kernels::Rule large{.kind = kernels::RuleKind::kSgd, .lr = 1e20};
  const ps::Frame answer = rig.ask(guest, set_rule("m", large));
  CHECK(error_of(answer) == ErrorKind::kInvalidArgument);
  CHECK(text_of(answer).find("slot 2 with lr_scale 1e+30") != std::string::npos);
  const Ids ids{5, (std::uint64_t{1} << 32) + 5};
  rig.ask(guest, push("m", ids, {1, 1}));
  const ps::Frame rows = rig.ask(guest, pull("m", ids));
  CHECK(rows_of(rows.header, rows.payload, 1).rows == Values{-1, -2});
  spec.name = "n";
  spec.rule = large;
  CHECK(error_of(rig.ask(guest, make_table(spec))) == ErrorKind::kInvalidArgument);
}

TEST_CASE("a rule of another state is refused, and the one in force stays") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(momentum_table(1)));
  const kernels::Rule plain{.kind = kernels::RuleKind::kSgd, .lr = 1};
  const kernels::Rule adam{.kind = kernels::RuleKind::kAdam};
  kernels::Rule senseless = momentum_table(1).rule;
  senseless.lr = -1;
  for (const kernels::Rule& rule : {plain, adam, senseless}) {
    const ps::Frame answer = rig.ask(guest, set_rule("m", rule));
    CHECK(error_of(answer) == ErrorKind::kInvalidArgument);
    CHECK(text_of(answer).find("\"m\"") != std::string::npos);
  }
  CHECK(error_of(rig.ask(guest, set_rule("none", plain))) == ErrorKind::kInvalidArgument);
  rig.ask(guest, push("m", {5}, {1}));
  const ps::Frame answer = rig.ask(guest, pull("m", {5}));
  CHECK(rows_of(answer.header, answer.payload, 1).rows == Values{-1});
}

TEST_CASE("a handle of a table that was made anew with another rule is refused") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  ps::TableSpec spec = sum_table("t", 2);
  const std::uint32_t before = ps::layout_of(spec);
  spec.rule.kind = kernels::RuleKind::kSgd;
  rig.ask(guest, make_table(spec));
  Request change = push("t", {1}, {1, 1});
  Request read = pull("t", {1});
  for (const std::uint32_t layout : {before, ps::layout_of(spec), std::uint32_t{0}}) {
    change.header.layout = read.header.layout = layout;
    const ErrorKind expected = layout == before ? ErrorKind::kInvalidArgument : ErrorKind::kNone;
    CHECK(error_of(rig.ask(guest, change)) == expected);
    CHECK(error_of(rig.ask(guest, read)) == expected);
  }
  ps::TableSpec slower = spec;
  slower.rule.lr /= 2;  // May change while the table stays.
  CHECK(ps::layout_of(slower) == ps::layout_of(spec));
}

TEST_CASE("a table that is too large for one shard is refused, and the shard lives on") {
  ShardRig rig;
  Guest guest = enter_with_table(rig, 0);
  ps::TableSpec huge = sum_table("huge", 1);
  huge.kind = ps::TableKind::kDense;
  huge.count = std::uint64_t{1} << 38;
  CHECK(error_of(rig.ask(guest, make_table(huge))) == ErrorKind::kInvalidArgument);
  // With its state it is read in one answer, as large as any may be.
  huge.count = std::uint64_t{1} << 28;
  huge.rule.kind = kernels::RuleKind::kAdam;
  CHECK(error_of(rig.ask(guest, make_table(huge))) == ErrorKind::kInvalidArgument);
  rig.ask(guest, push("t", {5}, {1, 1}));
  CHECK(pulled(rig, guest, {5}) == Values{1, 1});
}

TEST_CASE("a pull of more rows than any client asks for is refused, and others are served") {
  ShardRig rig;
  Guest guest = rig.enter(7);
  rig.ask(guest, make_table(sum_table("wide", 1u << 16)));
  const ps::Frame answer = rig.ask(guest, pull("wide", Ids(1u << 16, 5)));
  CHECK(error_of(answer) == ErrorKind::kInvalidArgument);
  CHECK(text_of(answer).find("one request may ask for 67108864") != std::string::npos);
  CHECK(rig.ask(guest, pull("wide", {5})).header.type == PsType::kRows);
}

TEST_CASE("an id of another shard is refused by number") {
  ShardRig rig(0, 2);
  Guest guest = enter_with_table(rig, 0);
  Ids theirs{1};
  while (ps::shard_of(theirs[0], 2) == 0) ++theirs[0];
  const ps::Frame answer = rig.ask(guest, push("t", theirs, {1, 1}));
  CHECK(error_of(answer) == ErrorKind::kInvalidArgument);
  CHECK(text_of(answer).find("belongs to shard 1") != std::string::npos);
  CHECK(error_of(rig.ask(guest, pull("t", theirs))) == ErrorKind::kInvalidArgument);
}

ps::TableSpec three_floats() {
  ps::TableSpec spec = sum_table("d", 1);
  spec.kind = ps::TableKind::kDense;
  spec.count = 3;
  return spec;
}

TEST_CASE("every request cut short is refused or answered, and a refused one changes nothing") {
  const std::vector<Request> requests{make_table(sum_table("u", 4)),
                                      push("t", {1}, {1, 1}, {.round = wire::Round{7, 0}}),
                                      clock(7, 1, {2, true, 1}),
                                      tick(4),
                                      shrink("t", 2, 1),
                                      leave(7),
                                      set_rule("t", {}),
                                      write_rows("t", {{.id = 1}, {.id = 9}}, {5, 6, 7, 8}, 3),
                                      write_dense("d", 2, {5, 6, 7}),
                                      push_dense("d", {5, 6, 7}),
                                      pull("t", {1, 2}, wire::Gate{7, 0, 10, true}),
                                      advance(3, Millis{10}, {{1, 2, 3, {4}}}),
                                      cut(3, "{}")};
  int refused = 0;
  for (const Request& request : requests) {
    std::size_t bytes = 0;
    std::size_t whole_bytes = 1;
    for (; bytes < whole_bytes; ++bytes) {
      ShardRig rig;
      Guest guest = enter_with_table(rig, 0);
      rig.ask(guest, make_table(three_floats()));
      rig.ask(guest, push("t", {1, 2}, {1, 2, 3, 4}));
      rig.ask(guest, push_dense("d", {1, 2, 3}));
      const auto before = rig.snapshot();
      const std::size_t records = rig.journal.records.size();
      ps::Frame frame = rig.frame_of(guest, request);
      whole_bytes = frame.payload.size();
      frame.payload.resize(bytes);
      try {
        const auto answers = rig.send_frame(guest, std::move(frame));
        REQUIRE(answers.size() == 1);
        if (error_of(answers[0].frame) == ErrorKind::kNone) continue;
        CHECK(pulled(rig, guest, {1, 2, 9}) == Values{1, 2, 3, 4, 0, 0});
        CHECK(floats_of(rig.ask(guest, pull_dense("d")).payload) == Values{1, 2, 3});
      } catch (const ProtocolError&) {
        ++refused;
        CHECK(rig.journal.records.size() == records);
        CHECK(rig.snapshot() == before);
      }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("a second hello of another client, and a request before it, are refused") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  ps::Frame hello;
  hello.payload = hello_payload(1, 1);
  CHECK_THROWS_AS(rig.send_frame(guest, hello), ProtocolError);
  Guest stranger;
  stranger.connection = 50;
  rig.shard().connected(50, rig.now);
  CHECK_THROWS_AS(rig.send(stranger, pull("t", {1})), ProtocolError);
  ps::Frame answer;
  answer.header.type = PsType::kDone;
  CHECK_THROWS_AS(rig.send_frame(guest, answer), ProtocolError);
}

}  // namespace

TEST_CASE("a server that was started again says that its checkpoints cannot be built on") {
  const auto lineage = [](ShardRig& rig) {
    Guest saver = rig.enter(5);
    return rig.ask(saver, freeze(1, Millis{60'000})).header.b;
  };
  ShardRig rig(0, 1, 1);
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(sum_table("rows", 1)));
  rig.ask(guest, push("rows", {7}, {1}));
  const auto saved = rig.snapshot();
  ShardRig again(0, 1, 2);
  again.load({saved}, true);
  CHECK(lineage(again) != lineage(rig));
}

}  // namespace gradring::testing::shard_test
