// Snapshots and the journal: a shard made from what was saved is the same shard, bit for bit,
// whatever changed it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/config.h"
#include "ps/tables/partition.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::replay_test {
namespace {

using wire::PsType;

ps::TableSpec adagrad_table() {
  ps::TableSpec spec = sum_table("adagrad", 3);
  spec.rule.kind = kernels::RuleKind::kAdagrad;
  spec.rule.lr = 0.25;
  spec.init = {ps::InitKind::kUniform, -1, 1};
  spec.seed = 5;
  spec.unseen_ticks = 12;
  spec.score_decay = 0.75;
  return spec;
}
ps::TableSpec dense_table() {
  ps::TableSpec spec = sum_table("dense", 1);
  spec.kind = ps::TableKind::kDense;
  spec.count = 50;
  spec.rule.kind = kernels::RuleKind::kAdam;
  return spec;
}

// Whole rows and floats in place of what is there, on their shard.
void write(ShardRig& rig, Guest& guest, std::uint32_t shard, std::uint32_t shards) {
  std::vector<ps::RowMeta> metas;
  Values floats;
  for (std::uint64_t id : {3u, 100u, 101u, 102u, 103u}) {
    if (ps::shard_of(id, shards) != shard) continue;
    ps::RowMeta meta;
    meta.id = id;
    meta.version = 20;
    meta.tick = 15;
    meta.score = static_cast<float>(id);
    metas.push_back(meta);
    for (int column = 0; column < 6; ++column)  // Weights, then Adagrad's state.
      floats.push_back(0.1f * static_cast<float>(id) + static_cast<float>(column));
  }
  rig.ask(guest, write_rows("adagrad", metas, floats));
  rig.ask(guest, write_rows("adagrad", {}, {}, 7));
  const ps::DenseRange range = ps::dense_range(50, shard, shards);
  Values dense;
  for (std::uint64_t field = 0; field < 3; ++field)  // Weights, then Adam's state.
    for (std::uint64_t at = range.begin; at < range.end; ++at)
      dense.push_back(0.001f * static_cast<float>(at + 100 * field));
  rig.ask(guest, write_dense("dense", 5, dense));
  dense.resize(range.end - range.begin);
  rig.ask(guest, write_dense("dense", 6, dense));
}

// Rows that a tick or a shrink says it removed.
std::uint64_t removed(const ps::Frame& answer) {
  REQUIRE(answer.header.type == PsType::kDone);
  wire::Reader in(answer.payload);
  return ps::get_outcome(in).workers;
}

// Requests that this shard takes its part of, each kind that changes something: rounds, a failure,
// several clients. Returns how many rows went.
std::uint64_t train(ShardRig& rig, std::uint32_t shard, std::uint32_t shards) {
  std::vector<Guest> guests;
  for (std::uint32_t client : {0u, 1u}) {
    guests.push_back(rig.enter(client));
    rig.ask(guests.back(), make_table(adagrad_table()));
    rig.ask(guests.back(), make_table(dense_table()));
  }
  const ps::DenseRange range = ps::dense_range(50, shard, shards);
  std::uint64_t gone = 0;
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
    if (step % 4 == 3) gone += removed(rig.ask(guest, tick(step + 10)));
    if (step == 9) write(rig, guest, shard, shards);
    if (step % 6 == 5) gone += removed(rig.ask(guest, shrink("adagrad", 0.2f, 0)));
    if (step == 12) gone += removed(rig.ask(guest, shrink("", 0, 9)));
    rig.ask(guest, clock(9, step / 2, {2, true, 1}));
    rig.ask(guest, clock(11, step / 2, {2, false, 1}));
    if (step % 5 == 0)
      rig.ask(guest, push("adagrad", ids, rows, {.round = wire::Round{9, step / 2}}));
  }
  rig.ask(guests[1], leave(11));
  return gone;
}

// What the tables say, whatever the shard's layout: rows by id with their versions, dense by place.
struct Contents {
  std::map<std::uint64_t, std::vector<float>> rows;
  std::map<std::uint64_t, float> dense;
  friend bool operator==(const Contents&, const Contents&) = default;
};
void read_contents(ShardRig& rig, std::uint32_t shard, std::uint32_t shards, Contents& contents) {
  Guest guest = rig.enter(77);
  const ps::Frame answer = rig.ask(guest, read_rows("adagrad", 1000));
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
    row.push_back(static_cast<float>(meta.tick));
    row.push_back(meta.score);
    row.push_back(static_cast<float>(meta.stamp));
    row.push_back(static_cast<float>(meta.writer));
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
  CHECK(train(rig, 0, 1) > 5);
  const auto& records = rig.journal.records;
  for (const PsType type :
       {PsType::kMakeTable, PsType::kSetRule, PsType::kPush, PsType::kPushDense, PsType::kWriteRows,
        PsType::kClock, PsType::kLeave, PsType::kTick, PsType::kShrink}) {
    CAPTURE(name(type));
    CHECK(std::any_of(records.begin(), records.end(),
                      [&](const auto& record) { return record.header.type == type; }));
  }
  ShardRig again;
  again.replay(records);
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
  rig.ask(guest, push("adagrad", {20, 25}, {1, 2, 3, 4, 5, 6}));
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

TEST_CASE("after a recovery the same rows go as in the shard that went on, wherever they lie") {
  ShardRig rig;
  train(rig, 0, 1);
  ShardRig again;
  again.load({rig.snapshot()}, true);
  const std::size_t before = rig.journal.records.size();
  Guest guest = rig.enter(0);
  // Into the places of rows that went, which the other shard never had.
  rig.ask(guest, push("adagrad", {500, 501, 502}, Values(9, 1)));
  CHECK(removed(rig.ask(guest, tick(33))) > 0);
  rig.ask(guest, push("adagrad", {600, 601}, Values(6, 1)));
  CHECK(removed(rig.ask(guest, shrink("adagrad", 0.5f, 0))) > 3);
  again.replay({rig.journal.records.begin() + static_cast<std::ptrdiff_t>(before),
                rig.journal.records.end()});
  Contents expected;
  Contents found;
  read_contents(rig, 0, 1, expected);
  read_contents(again, 0, 1, found);
  CHECK(expected.rows.contains(600));
  CHECK(found == expected);
}

TEST_CASE("a checkpoint goes onto any number of shards and back without a changed bit") {
  for (const auto& [from, to] : {std::pair{1u, 3u}, {3u, 2u}, {3u, 1u}, {2u, 2u}}) {
    CAPTURE(from);
    CAPTURE(to);
    Contents before;
    std::uint64_t gone = 0;
    std::vector<std::vector<std::byte>> saved;
    const auto old_rigs = rigs(from);
    for (std::uint32_t shard = 0; shard < from; ++shard) {
      gone += train(*old_rigs[shard], shard, from);
      saved.push_back(old_rigs[shard]->snapshot());
      read_contents(*old_rigs[shard], shard, from, before);
    }
    CHECK(gone > 5);
    CHECK(before.rows.size() + gone == 29 + 4);  // Pushed, and written.
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

}  // namespace
}  // namespace gradring::testing::replay_test
