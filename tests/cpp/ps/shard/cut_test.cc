// Cuts, snapshots and the journal: a freeze holds back exactly what does not belong to the cut, and
// a shard made from what was saved is the same shard, bit for bit.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/config.h"
#include "ps/tables/partition.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::cut_test {
namespace {

using wire::PsType;

constexpr Millis kLong{1000};

ps::TableSpec adagrad_table() {
  ps::TableSpec spec = sum_table("adagrad", 3);
  spec.rule.kind = kernels::RuleKind::kAdagrad;
  spec.rule.lr = 0.25;
  spec.init = {ps::InitKind::kUniform, -1, 1};
  spec.seed = 5;
  return spec;
}
ps::TableSpec dense_table() {
  ps::TableSpec spec = sum_table("dense", 1);
  spec.kind = ps::TableKind::kDense;
  spec.count = 50;
  spec.rule.kind = kernels::RuleKind::kAdam;
  return spec;
}

// Requests that this shard takes its part of: every rule, rounds, a failure, several clients.
void train(ShardRig& rig, std::uint32_t shard, std::uint32_t shards) {
  std::vector<Guest> guests;
  for (std::uint32_t client : {0u, 1u}) {
    guests.push_back(rig.enter(client));
    rig.ask(guests.back(), make_table(adagrad_table()));
    rig.ask(guests.back(), make_table(dense_table()));
  }
  const ps::DenseRange range = ps::dense_range(50, shard, shards);
  for (std::uint32_t step = 0; step < 20; ++step) {
    Ids ids;
    Values rows;
    for (std::uint64_t id = step; id < step + 10; ++id) {
      if (ps::shard_of(id, shards) != shard) continue;
      ids.push_back(id);
      for (int column = 0; column < 3; ++column)
        rows.push_back(0.1f * static_cast<float>(id + step) - 0.7f);
    }
    Guest& guest = guests[step % 2];
    rig.ask(guest, push("adagrad", ids, rows, {.seen = step / 2}));
    Values dense;
    for (std::uint64_t at = range.begin; at < range.end; ++at)
      dense.push_back(0.01f * static_cast<float>(at * (step + 1)));
    rig.ask(guest, push_dense("dense", dense));
    if (step % 7 == 0) rig.ask(guest, push("missing", ids, rows));
    if (step % 8 == 3) {
      kernels::Rule slower = adagrad_table().rule;
      slower.lr /= step;
      rig.ask(guest, set_rule("adagrad", slower));
    }
    rig.ask(guest, clock(9, step / 2, {2, true, 1}));
    if (step % 5 == 0)
      rig.ask(guest, push("adagrad", ids, rows, {.round = wire::Round{9, step / 2}}));
  }
}

// What the tables say, whatever the shard's layout: rows by id with their versions, dense by place.
struct Contents {
  std::map<std::uint64_t, std::vector<float>> rows;
  std::map<std::uint64_t, float> dense;
  friend bool operator==(const Contents&, const Contents&) = default;
};
void read_contents(ShardRig& rig, std::uint32_t shard, std::uint32_t shards, Contents& contents) {
  Guest guest = rig.enter(77);
  Request read;
  read.header.type = PsType::kReadRows;
  read.header.b = 1000;
  read.header.table = ps::table_id("adagrad");
  const ps::Frame answer = rig.ask(guest, read);
  REQUIRE(answer.header.type == PsType::kWholeRows);
  const std::size_t floats =
      answer.header.count == 0
          ? 0
          : (answer.payload.size() / answer.header.count - sizeof(ps::RowMeta)) / sizeof(float);
  const std::size_t floats_at = answer.header.count * sizeof(ps::RowMeta);
  const Values all = floats_of(std::span(answer.payload).subspan(floats_at));
  for (std::size_t i = 0; i < answer.header.count; ++i) {
    ps::RowMeta meta;
    std::memcpy(&meta, answer.payload.data() + i * sizeof meta, sizeof meta);
    auto& row = contents.rows[meta.id];
    row.assign(all.begin() + static_cast<std::ptrdiff_t>(i * floats),
               all.begin() + static_cast<std::ptrdiff_t>((i + 1) * floats));
    row.push_back(static_cast<float>(meta.version));
    row.push_back(static_cast<float>(meta.steps));
  }
  const Values dense = floats_of(rig.ask(guest, pull_dense("dense")).payload);
  const ps::DenseRange range = ps::dense_range(50, shard, shards);
  REQUIRE(dense.size() == range.end - range.begin);
  for (std::size_t i = 0; i < dense.size(); ++i) contents.dense[range.begin + i] = dense[i];
}

std::vector<std::unique_ptr<ShardRig>> rigs(std::uint32_t shards) {
  std::vector<std::unique_ptr<ShardRig>> made;
  for (std::uint32_t shard = 0; shard < shards; ++shard)
    made.push_back(std::make_unique<ShardRig>(shard, shards));
  return made;
}

TEST_CASE("replaying the journal makes the same state, bit for bit") {
  ShardRig rig;
  train(rig, 0, 1);
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
}

TEST_CASE("a worker that was given up is given up in the replay, too") {
  ShardRig rig;
  std::vector<Guest> guests{rig.enter(0), rig.enter(1)};
  for (Guest& guest : guests) rig.ask(guest, clock(9, 1, {2, false, 1}));
  rig.shard().disconnected(guests[1].connection, rig.now);
  rig.tick_after(Millis{5000});
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
  Guest survivor = again.enter(0);
  CHECK(again.ask(survivor, clock(9, 5, {2, false, 1})).header.type == PsType::kDone);
  const auto answers = again.send(survivor, pull("none", {}, wire::Gate{9, 5, 100, false}));
  CHECK(answers.size() == 1);  // No bound waits for the one that was lost.
}

TEST_CASE("clients that had to make room for others begin anew, in the replay, too") {
  constexpr std::uint32_t kFirst = 1u << 31;
  ShardRig rig;
  rig.snapshot();  // Its client is one of so many.
  const auto has_entered = [&](std::uint32_t client) {
    Guest guest = rig.enter(client);
    rig.ask(guest, make_table(sum_table("t", 1)));
    rig.ask(guest, push("t", {client}, {1}));
    return guest;
  };
  const std::vector<Guest> gone{has_entered(kFirst), has_entered(kFirst + 1)};
  for (std::uint32_t client = 2; client + 1 < limits::kPsClients; ++client)
    rig.enter(kFirst + client);
  rig.shard().disconnected(gone[0].connection, rig.now);
  // For a moment only it may be away: what it has under way must not be done twice.
  CHECK_THROWS_AS(rig.enter(7), InvalidArgument);
  rig.shard().disconnected(gone[1].connection, rig.now + Millis{100});
  rig.tick_after(Millis{5000});
  has_entered(7);
  CHECK(rig.enter(kFirst + 1).seq == 2);
  rig.shard().disconnected(8, rig.now);  // Another one, which has done nothing.
  rig.tick_after(Millis{5000});
  CHECK(has_entered(kFirst).seq == 2);
  ShardRig again;
  again.replay(rig.journal.records);
  CHECK(again.snapshot() == rig.snapshot());
}

TEST_CASE("a journal that lacks a record is refused") {
  ShardRig rig;
  train(rig, 0, 1);
  std::erase_if(rig.journal.records, [](const auto& record) { return record.header.seq == 3; });
  ShardRig again;
  CHECK_THROWS_AS(again.replay(rig.journal.records), ProtocolError);
}

TEST_CASE("a recovery from a snapshot and the rest of the journal is the same shard") {
  ShardRig rig;
  train(rig, 0, 1);
  const auto saved = rig.snapshot();
  const std::size_t before = rig.journal.records.size();
  Guest guest = rig.enter(0);
  rig.ask(guest, push("adagrad", {3, 500}, {1, 2, 3, 4, 5, 6}));
  rig.ask(guest, clock(9, 10, {2, true, 1}));
  ShardRig again;
  again.load({saved}, true);
  CHECK(again.snapshot() == saved);
  again.replay({rig.journal.records.begin() + static_cast<std::ptrdiff_t>(before),
                rig.journal.records.end()});
  CHECK(again.snapshot() == rig.snapshot());
  // What was acknowledged before is known: it is not done again.
  CHECK(again.enter(0).seq == guest.seq);
}

TEST_CASE("a checkpoint goes onto any number of shards and back without a changed bit") {
  for (const auto& [from, to] : {std::pair{1u, 3u}, {3u, 2u}, {3u, 1u}, {2u, 2u}}) {
    CAPTURE(from);
    CAPTURE(to);
    Contents before;
    std::vector<std::vector<std::byte>> saved;
    const auto old_rigs = rigs(from);
    for (std::uint32_t shard = 0; shard < from; ++shard) {
      train(*old_rigs[shard], shard, from);
      saved.push_back(old_rigs[shard]->snapshot());
      read_contents(*old_rigs[shard], shard, from, before);
    }
    CHECK(before.rows.size() == 29);
    Contents after;
    const auto new_rigs = rigs(to);
    for (std::uint32_t shard = 0; shard < to; ++shard) {
      new_rigs[shard]->load(saved, false);
      read_contents(*new_rigs[shard], shard, to, after);
    }
    CHECK(after == before);
  }
}

TEST_CASE("a damaged snapshot is refused, and what was there stays") {
  ShardRig rig;
  train(rig, 0, 1);
  const auto saved = rig.snapshot();
  ShardRig other;
  train(other, 0, 1);
  const auto before = other.snapshot();
  int refused = 0;
  for (std::size_t bytes = 1; bytes < saved.size(); bytes += 13) {
    other.shard().begin_load();
    try {
      other.shard().load_piece(std::span(saved).first(bytes));
    } catch (const Error&) {
      ++refused;
    }
    other.shard().abandon_load();
  }
  CHECK(refused > 20);
  CHECK(other.snapshot() == before);
}

TEST_CASE("clients that make no sense are refused before anything is taken over") {
  ShardRig rig;
  train(rig, 0, 1);
  auto saved = rig.snapshot();
  constexpr std::size_t kHead = 24, kLayout = 24;  // Of a record; what the first one holds.
  REQUIRE(saved[kHead + kLayout] == std::byte{2});
  for (std::size_t i = 0; i < 4; ++i) saved[2 * kHead + kLayout + i] = std::byte{0xff};
  ShardRig other;
  const auto before = other.snapshot();
  other.shard().begin_load();
  CHECK_THROWS_AS(other.shard().load_piece(saved), ProtocolError);
  other.shard().abandon_load();
  CHECK(other.snapshot() == before);
}

TEST_CASE("pulls that wait and rounds that are open survive a load without harm") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  rig.ask(guest, make_table(sum_table("t", 4)));
  rig.ask(guest, clock(9, 0, {2, true, 1}));
  rig.ask(guest, push("t", {1}, {1, 2, 3, 4}, {.round = wire::Round{9, 0}}));
  ShardRig source;
  Guest other = source.enter(0);
  source.ask(other, make_table(sum_table("t", 64)));
  rig.load({source.snapshot()}, false);
  Guest second = rig.enter(1);
  rig.ask(guest, clock(9, 1, {2, true, 1}));
  rig.ask(second, clock(9, 1, {2, true, 1}));
  const ps::Frame answer = rig.ask(guest, pull("t", {1}));
  CHECK(rows_of(answer.header, answer.payload, 64).rows == Values(64, 0));
}

TEST_CASE("a freeze holds back changes, and reads go on") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  const ps::Frame frozen = rig.ask(saver, freeze(1, kLong));
  const auto positions = ps::decode_positions(frozen.payload);
  REQUIRE(positions.size() == 1);
  CHECK(positions[0].client == 0);
  CHECK(positions[0].seq == 1);
  CHECK(rig.ask(saver, pull("t", {1})).header.type == PsType::kRows);
  const ps::Frame done_before = rig.frame_of(guest, make_table(sum_table("t", 1)));
  CHECK(rig.send_frame(guest, done_before).empty());
  // Thawed by the cut, in which it is not.
  const auto answers = rig.send(saver, cut(1, "{}"));
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].to == guest.connection);
  REQUIRE(rig.shard().take_jobs().size() == 1);
}

TEST_CASE("advance lets through what belongs to the cut and nothing else") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(guest, push("t", {1}, {1})).empty());
  CHECK(rig.send(guest, push("t", {1}, {10})).empty());
  CHECK(rig.send(guest, pull("t", {1})).empty());  // It follows them.
  // Another shard has seen its second request.
  const auto answers = rig.send(saver, advance(1, kLong, {{0, 1, 2, {}}}));
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].to == guest.connection);
  CHECK(answers[1].to == saver.connection);
  CHECK(text_of(answers[1].frame) == "");
  const auto others = rig.send(saver, cut(1, ""));
  REQUIRE(others.size() == 3);
  CHECK(rows_of(others[2].frame.header, others[2].frame.payload, 1).rows == Values{11});
  ps::SnapshotBytes bytes;
  while (rig.shard().next_snapshot_piece(1, 64, bytes)) {
  }
  rig.shard().end_snapshot(1);
  ShardRig restored;
  restored.load({{bytes.view().begin(), bytes.view().end()}}, true);
  Guest reader = restored.enter(7);
  const ps::Frame rows = restored.ask(reader, pull("t", {1}));
  CHECK(rows_of(rows.header, rows.payload, 1).rows == Values{1});
}

TEST_CASE("advance waits for a client that this shard has not met yet") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, advance(1, kLong, {{3, 1, 1, {}}})).empty());
  Guest late = rig.enter(3);
  const auto answers = rig.send(late, make_table(sum_table("t", 1)));
  REQUIRE(answers.size() == 2);
  CHECK(text_of(answers[1].frame) == "");
}

TEST_CASE("advance says whose requests never came") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(guest, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, advance(1, Millis{300}, {{0, 1, 4, {}}})).empty());
  const auto answers = rig.tick_after(Millis{300});
  REQUIRE(answers.size() == 1);
  CHECK(text_of(answers[0].frame) == "client 0 (3 requests)");
  CHECK(rig.ask(saver, cut(1, "")).header.type == PsType::kDone);
}

TEST_CASE("of a client that was replaced meanwhile nothing is waited for or let through") {
  ShardRig rig;
  Guest first = rig.enter(0, 1);
  rig.ask(first, make_table(sum_table("t", 1)));
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  Guest second = rig.enter(0, 2);
  CHECK(text_of(rig.ask(saver, advance(1, kLong, {{0, 1, 4, {}}}))) == "");
  CHECK(rig.send(second, push("t", {1}, {1})).empty());
}

TEST_CASE("a freeze melts by itself, and the saver is told so") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(guest, make_table(sum_table("t", 1))).empty());
  CHECK(rig.tick_after(kLong).size() == 1);
  CHECK(error_of(rig.ask(saver, cut(1, ""))) == ErrorKind::kTimedOut);
  CHECK(error_of(rig.ask(saver, advance(1, kLong, {}))) == ErrorKind::kTimedOut);
}

TEST_CASE("a cut, a load and a job that are asked for again after a lost answer happen once") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, freeze(1, kLong));
  const ps::Frame first = rig.ask(saver, cut(1, "save"));
  const ps::Frame second = rig.ask(saver, cut(1, "save"));
  CHECK(second.header.type == PsType::kDone);
  CHECK(second.payload == first.payload);
  CHECK(rig.shard().take_jobs().size() == 1);
  rig.ask(saver, load(2, "load"));
  CHECK(rig.shard().take_jobs().size() == 1);
  rig.ask(saver, load(2, "load"));
  CHECK(rig.shard().take_jobs().empty());
  CHECK(rig.send(saver, job(2)).empty());
  std::vector<ps::Answer> answers;
  rig.shard().finish_job(2, "result", {}, answers);
  REQUIRE(answers.size() == 1);
  CHECK(text_of(answers[0].frame) == "result");
  CHECK(text_of(rig.ask(saver, job(2))) == "result");
}

TEST_CASE("a job that a restarted server knows nothing of is an error, not a wait") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  CHECK(error_of(rig.ask(saver, job(7))) == ErrorKind::kPeerLost);
}

TEST_CASE("the saver's own changes do not keep its cut from happening") {
  ShardRig rig;
  Guest saver = rig.enter(5);
  rig.ask(saver, make_table(sum_table("t", 1)));
  rig.ask(saver, freeze(1, kLong));
  CHECK(rig.send(saver, push("t", {1}, {1})).empty());  // From another thread of the same client.
  CHECK(rig.shard().takes_from(saver.connection));
  CHECK(text_of(rig.ask(saver, advance(1, kLong, {{5, 1, 1, {}}}))) == "");
  CHECK(rig.send(saver, cut(1, "")).size() == 2);
}

}  // namespace
}  // namespace gradring::testing::cut_test
