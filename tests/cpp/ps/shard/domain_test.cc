// Workers that train together: bounds open when they may and not before, rounds are applied when
// everybody is there, and whoever waits in vain is told for whom.
#include "ps/shard/domain.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/config.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::domain_test {
namespace {

using wire::PsType;

constexpr std::uint64_t kDomain = 42;
constexpr ps::ClockPayload kBoundOfTwo{2, false, 1};

ps::ClockPayload round_of(std::uint32_t workers, double weight = 1) {
  return {workers, true, weight};
}
wire::Gate bound_at(std::uint64_t clock) {
  return {kDomain, clock, 500, false};
}
wire::Gate rounds_before(std::uint64_t clock) {
  return {kDomain, clock, 500, true};
}
PushWishes in_round(std::uint64_t clock) {
  return {.round = wire::Round{kDomain, clock}};
}

// So many workers 0, 1, ... of one domain, with a sparse and a dense table of the sum rule.
struct Team {
  Team(std::uint32_t count, bool is_round) {
    for (std::uint32_t worker = 0; worker < count; ++worker) {
      guests.push_back(rig.enter(worker));
      rig.ask(guests.back(), make_table(sum_table("rows", 1)));
      ps::TableSpec dense = sum_table("dense", 1);
      dense.kind = ps::TableKind::kDense;
      dense.count = 3;
      rig.ask(guests.back(), make_table(dense));
    }
    for (Guest& guest : guests) rig.ask(guest, clock(kDomain, 0, {count, is_round, 1}));
  }
  Values pulled(const Ids& ids) {
    const ps::Frame answer = rig.ask(guests[0], pull("rows", ids));
    return rows_of(answer.header, answer.payload, 1).rows;
  }
  Values dense() { return floats_of(rig.ask(guests[0], pull_dense("dense")).payload); }

  ShardRig rig;
  std::vector<Guest> guests;
};

TEST_CASE("a bound opens exactly when the slowest living worker has come there") {
  ps::Domain domain;
  domain.set_clock(0, 3, kBoundOfTwo);
  CHECK(domain.is_open(bound_at(0)));
  CHECK_FALSE(domain.is_open(bound_at(1)));  // Worker 1 has not come at all.
  domain.set_clock(1, 2, kBoundOfTwo);
  CHECK(domain.is_open(bound_at(2)));
  CHECK_FALSE(domain.is_open(bound_at(3)));
  domain.set_clock(1, 1, kBoundOfTwo);  // Clocks do not go back.
  CHECK(domain.is_open(bound_at(2)));
  domain.lose(1);
  CHECK(domain.is_open(bound_at(3)));
  domain.set_clock(1, 2, kBoundOfTwo);  // It is back, and counts again.
  CHECK_FALSE(domain.is_open(bound_at(3)));
  domain.leave(1);
  CHECK(domain.is_open(bound_at(3)));
  CHECK_FALSE(domain.is_open(bound_at(4)));
}

TEST_CASE("workers that contradict one another are refused, and nothing is changed") {
  ps::Domain domain;
  domain.set_clock(0, 1, round_of(2));
  CHECK_THROWS_AS(domain.set_clock(1, 1, kBoundOfTwo), InvalidArgument);
  CHECK_THROWS_AS(domain.set_clock(1, 1, round_of(3)), InvalidArgument);
  CHECK_THROWS_AS(domain.set_clock(2, 1, round_of(2)), InvalidArgument);
  CHECK_THROWS_AS(domain.set_clock(1, 1, round_of(2, -1)), InvalidArgument);
  CHECK_THROWS_AS(domain.set_clock(1, 1, round_of(2, std::nan(""))), InvalidArgument);
  CHECK_THROWS_AS(domain.set_clock(1, 1000, round_of(2)), InvalidArgument);
  CHECK_FALSE(domain.has(1));
  CHECK_FALSE(domain.has_ready_round());
  domain.set_clock(1, 1, round_of(2));
  CHECK(domain.has_ready_round());
}

TEST_CASE("what a domain saves it restores, contributions and weights included") {
  ps::Domain domain;
  domain.set_clock(0, 2, round_of(2, 0.5));
  domain.set_clock(1, 0, round_of(2));
  ps::Contribution& given = domain.contribution(1, 0, 7);
  given.ids = {3, 1};
  given.values = {1, 2};
  const auto contributions = [](const ps::Domain& of) {
    std::vector<Bytes> all;
    of.for_each_contribution([&all](Bytes one) { all.push_back(std::move(one)); });
    return all;
  };
  Bytes saved;
  domain.save(saved);
  wire::Reader in(saved);
  ps::Domain again = ps::Domain::restore(in);
  CHECK(in.left() == 0);
  REQUIRE(contributions(domain).size() == 1);
  for (const Bytes& one : contributions(domain)) {
    wire::Reader from(one);
    again.restore_contribution(from);
    CHECK(from.left() == 0);
  }
  Bytes resaved;
  again.save(resaved);
  CHECK(resaved == saved);
  CHECK(contributions(again) == contributions(domain));
  for (std::size_t bytes = 0; bytes < saved.size(); ++bytes) {
    const std::span<const std::byte> whole(saved);
    wire::Reader cut_short(whole.first(bytes));
    CHECK_THROWS_AS(ps::Domain::restore(cut_short), ProtocolError);
  }
}

TEST_CASE("a pull behind a bound is answered in the very step that lets it through") {
  Team team(2, false);
  CHECK(team.rig.send(team.guests[0], pull("rows", {1}, bound_at(1))).empty());
  CHECK(team.rig.send(team.guests[0], clock(kDomain, 1, kBoundOfTwo)).size() == 1);
  team.rig.ask(team.guests[1], push("rows", {1}, {8}));
  const auto answers = team.rig.send(team.guests[1], clock(kDomain, 1, kBoundOfTwo));
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].to == team.guests[0].connection);
  // It sees what the slow worker did before its clock.
  CHECK(rows_of(answers[1].frame.header, answers[1].frame.payload, 1).rows == Values{8});
}

TEST_CASE("a pull whose time is up is told which workers are missing") {
  Team team(3, false);
  CHECK(team.rig.send(team.guests[1], clock(kDomain, 4, {3, false, 1})).size() == 1);
  CHECK(team.rig.send(team.guests[1], pull("rows", {1}, bound_at(4))).empty());
  CHECK(team.rig.shard().next_tick() == team.rig.now + Millis{500});
  CHECK(team.rig.tick_after(Millis{499}).empty());
  const auto answers = team.rig.tick_after(Millis{1});
  REQUIRE(answers.size() == 1);
  CHECK(error_of(answers[0].frame) == ErrorKind::kTimedOut);
  CHECK(text_of(answers[0].frame).find("workers 0, 2") != std::string::npos);
}

TEST_CASE("a worker without a connection is given up, and the bound goes on without it") {
  Team team(2, false);
  team.rig.ask(team.guests[0], clock(kDomain, 1, kBoundOfTwo));
  team.rig.shard().disconnected(team.guests[1].connection, team.rig.now);
  team.rig.tick_after(Millis{900});
  CHECK(team.rig.send(team.guests[0], pull("rows", {1}, bound_at(1))).empty());
  const auto answers = team.rig.tick_after(Millis{100});
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].frame.header.type == PsType::kRows);
}

TEST_CASE("a worker that said goodbye is not waited for, unless it comes back and breaks off") {
  Team team(2, false);
  team.rig.ask(team.guests[0], clock(kDomain, 1, kBoundOfTwo));
  CHECK(team.rig.send(team.guests[0], pull("rows", {1}, bound_at(1))).empty());
  Request goodbye;
  goodbye.header.type = PsType::kGoodbye;
  CHECK(team.rig.ask(team.guests[1], goodbye).header.type == PsType::kDone);
  CHECK(team.rig.tick_after(Millis{0}).empty());  // Until its connection ends it is there.
  team.rig.shard().disconnected(team.guests[1].connection, team.rig.now);
  CHECK(team.rig.shard().next_tick() <= team.rig.now);
  const auto answers = team.rig.tick_after(Millis{0});
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].frame.header.type == PsType::kRows);

  Guest back = team.rig.enter(1);
  team.rig.ask(back, clock(kDomain, 1, kBoundOfTwo));
  team.rig.ask(team.guests[0], clock(kDomain, 2, kBoundOfTwo));
  CHECK(team.rig.send(team.guests[0], pull("rows", {1}, bound_at(2))).empty());
  team.rig.shard().disconnected(back.connection, team.rig.now);
  CHECK(team.rig.tick_after(Millis{0}).empty());
}

TEST_CASE("a round is the weighted average in rank order over every worker, touched rows only") {
  for (std::uint32_t count : {1u, 2u, 3u}) {
    CAPTURE(count);
    Team team(count, true);
    const double weights[] = {3, 0, 5};
    const float dyadic[] = {0.5f, 0.25f, 8};
    Values rows_by_hand{0, 0};
    Values dense_by_hand{0, 0, 0};
    double total = 0;
    // The last worker pushes first: its rank counts, not when it comes.
    for (std::uint32_t worker = count; worker-- > 0;) {
      const float g = dyadic[worker];
      Guest& guest = team.guests[worker];
      const Ids ids = worker == 1 ? Ids{7} : Ids{7, 3};
      team.rig.ask(guest,
                   push("rows", ids, worker == 1 ? Values{g} : Values{g, 2 * g}, in_round(0)));
      team.rig.ask(guest, push_dense("dense", {g, 2 * g, 3 * g}, in_round(0)));
      CHECK(team.pulled({7, 3}) == Values{0, 0});
      team.rig.ask(guest, clock(kDomain, 1, round_of(count, weights[worker])));
      total += weights[worker];
    }
    for (std::uint32_t worker = 0; worker < count; ++worker) {
      const auto w = static_cast<float>(weights[worker]);
      rows_by_hand[0] += w * dyadic[worker];
      if (worker != 1) rows_by_hand[1] += w * 2 * dyadic[worker];
      for (std::size_t i = 0; i < 3; ++i)
        dense_by_hand[i] += w * static_cast<float>(i + 1) * dyadic[worker];
    }
    for (float& value : rows_by_hand) value /= static_cast<float>(total);
    for (float& value : dense_by_hand) value /= static_cast<float>(total);
    CHECK(team.pulled({7, 3}) == rows_by_hand);
    CHECK(team.dense() == dense_by_hand);
  }
}

TEST_CASE("a round adds up in rank order, to the last bit, whoever comes first") {
  Team team(3, true);
  const float values[] = {1e8f, -1e8f, 1};  // In any other order the 1 is lost.
  for (const std::uint32_t worker : {2u, 0u, 1u}) {
    Guest& guest = team.guests[worker];
    const float g = values[worker];
    const Ids ids = worker == 1 ? Ids{3, 7, 9} : Ids{9, 7, 3};
    team.rig.ask(guest, push("rows", ids, {g, g, g}, in_round(0)));
    team.rig.ask(guest, push_dense("dense", {g, g, g}, in_round(0)));
    team.rig.ask(guest, clock(kDomain, 1, round_of(3, 1)));
  }
  const float third = 1.0f / 3;
  CHECK(team.pulled({3, 7, 9}) == Values{third, third, third});
  CHECK(team.dense() == Values{third, third, third});
}

TEST_CASE("a round in which all weights are zero changes nothing, and the next one begins") {
  Team team(2, true);
  for (Guest& guest : team.guests) {
    team.rig.ask(guest, push("rows", {7}, {1}, in_round(0)));
    team.rig.ask(guest, clock(kDomain, 1, round_of(2, 0)));
  }
  CHECK(team.pulled({7}) == Values{0});
  const ps::Frame answer = team.rig.ask(team.guests[0], pull("rows", {7}, rounds_before(1)));
  CHECK(answer.header.type == PsType::kRows);
}

TEST_CASE("a worker may be a round ahead, and its rows wait for that round") {
  Team team(2, true);
  Guest& fast = team.guests[0];
  Guest& slow = team.guests[1];
  for (std::uint64_t step = 0; step < 2; ++step) {
    team.rig.ask(fast, push("rows", {7}, {step == 0 ? 2.0f : 100.0f}, in_round(step)));
    team.rig.ask(fast, clock(kDomain, step + 1, round_of(2)));
  }
  team.rig.ask(slow, push("rows", {7}, {4}, in_round(0)));
  team.rig.ask(slow, clock(kDomain, 1, round_of(2)));
  CHECK(team.pulled({7}) == Values{3});
  CHECK(error_of(team.rig.ask(slow, push("rows", {7}, {1}, in_round(0)))) ==
        ErrorKind::kInvalidArgument);
  team.rig.ask(slow, clock(kDomain, 2, round_of(2)));
  CHECK(team.pulled({7}) == Values{53});
}

TEST_CASE("a lost worker fails the pulls that wait for its round, and they name it") {
  Team team(3, true);
  for (int worker : {0, 2})
    team.rig.ask(team.guests[static_cast<std::size_t>(worker)], clock(kDomain, 1, round_of(3)));
  CHECK(team.rig.send(team.guests[0], pull("rows", {1}, rounds_before(1))).empty());
  team.rig.shard().disconnected(team.guests[1].connection, team.rig.now);
  const auto answers = team.rig.tick_after(Millis{1000});
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].to == team.guests[0].connection);
  CHECK(error_of(answers[0].frame) == ErrorKind::kPeerLost);
  CHECK(answers[0].frame.header.b == 1);
  // Whoever asks later learns it at once.
  const ps::Frame later = team.rig.ask(team.guests[2], pull("rows", {1}, rounds_before(1)));
  CHECK(error_of(later) == ErrorKind::kPeerLost);
}

TEST_CASE("a worker that starts again in the middle of a round gives its part once") {
  Team team(2, true);
  team.rig.ask(team.guests[0], push("rows", {7}, {2}, in_round(0)));
  team.rig.ask(team.guests[0], clock(kDomain, 1, round_of(2)));
  team.rig.ask(team.guests[1], push("rows", {7}, {4}, in_round(0)));
  team.rig.ask(team.guests[1], push_dense("dense", {4, 4, 4}, in_round(0)));
  Guest again = team.rig.enter(1, 2);
  CHECK(error_of(team.rig.ask(again, clock(kDomain, 0, round_of(2)))) == ErrorKind::kNone);
  team.rig.ask(again, push("rows", {7}, {4}, in_round(0)));
  CHECK(error_of(team.rig.ask(again, push_dense("dense", {4, 4, 4}, in_round(0)))) ==
        ErrorKind::kNone);
  team.rig.ask(again, clock(kDomain, 1, round_of(2)));
  CHECK(team.pulled({7}) == Values{3});
  CHECK(team.dense() == Values{2, 2, 2});
}

TEST_CASE("a contribution that does not fit its table is refused and takes no part in the round") {
  Team team(2, true);
  Guest& guest = team.guests[0];
  CHECK(error_of(team.rig.ask(guest, push_dense("dense", {1}, in_round(0)))) ==
        ErrorKind::kInvalidArgument);
  for (Guest& each : team.guests) team.rig.ask(each, clock(kDomain, 1, round_of(2)));
  CHECK(team.dense() == Values{0, 0, 0});
}

TEST_CASE("a damaged pull is refused where it came from, not where its gate is opened") {
  Team team(2, false);
  Request broken = pull("rows", {1, 2}, bound_at(1));
  broken.header.count = 3;
  CHECK_THROWS_AS(team.rig.send(team.guests[0], broken), ProtocolError);
  for (Guest& each : team.guests)
    CHECK(team.rig.send(each, clock(kDomain, 1, kBoundOfTwo)).size() == 1);
}

TEST_CASE("a weight that would make the average a nan is refused") {
  Team team(2, true);
  for (const double weight : {HUGE_VAL, 1e300, -1.0, std::nan("")})
    CHECK(error_of(team.rig.ask(team.guests[0], clock(kDomain, 1, round_of(2, weight)))) ==
          ErrorKind::kInvalidArgument);
}

TEST_CASE("one client cannot fill a server with domains") {
  ShardRig rig;
  Guest guest = rig.enter(0);
  for (std::uint64_t domain = 1; domain <= limits::kPsDomains; ++domain)
    CHECK(error_of(rig.ask(guest, clock(domain, 1, kBoundOfTwo))) == ErrorKind::kNone);
  CHECK(error_of(rig.ask(guest, clock(5000, 1, kBoundOfTwo))) == ErrorKind::kInvalidArgument);
  rig.ask(guest, leave(1));
  CHECK(error_of(rig.ask(guest, clock(5000, 1, kBoundOfTwo))) == ErrorKind::kNone);
}

TEST_CASE("workers that a gate lets through at once are told of one copy of a dense table") {
  constexpr std::uint32_t kWorkers = 8;
  Team team(kWorkers, true);
  for (std::uint32_t worker = 0; worker + 1 < kWorkers; ++worker) {
    team.rig.ask(team.guests[worker], clock(kDomain, 1, round_of(kWorkers)));
    CHECK(team.rig.send(team.guests[worker], pull_dense("dense", rounds_before(1))).empty());
  }
  Guest& last = team.guests.back();
  team.rig.ask(last, push_dense("dense", {8, 16, 24}, in_round(0)));
  auto answers = team.rig.send(last, clock(kDomain, 1, round_of(kWorkers)));
  REQUIRE(answers.size() == kWorkers);
  for (std::size_t at = 1; at < answers.size(); ++at) {
    CHECK(floats_of(answers[at].payload()) == Values{1, 2, 3});
    CHECK(answers[at].payload().data() == answers[1].payload().data());
  }
  // What is on its way to a slow worker stays what it was; later answers are of another copy.
  team.rig.ask(last, push_dense("dense", {1, 1, 1}));
  CHECK(team.dense() == Values{2, 3, 4});
  CHECK(floats_of(answers[1].payload()) == Values{1, 2, 3});
  // Nobody needs it any more: it goes.
  const std::weak_ptr<const Bytes> copy = answers[1].shared;
  answers.clear();
  CHECK(copy.expired());
}

}  // namespace
}  // namespace gradring::testing::domain_test
