// Staged rounds: every element goes down and up once, slots are not overfilled, and an element
// keeps the part of the vector that its order of additions depends on.
#include "collectives/device/staged_rounds.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/error.h"
#include "support/collectives/plan_cases.h"

namespace gradring::testing::staged_rounds_test {
namespace {

using collectives::chunk_begin;
using collectives::Order;
using collectives::Piece;
using collectives::Request;
using collectives::staged_rounds;
using collectives::StagedRound;

std::vector<int> times_touched(const std::vector<StagedRound>& rounds,
                               std::vector<Piece> StagedRound::* way, std::uint64_t count) {
  std::vector<int> times(count);
  for (const StagedRound& round : rounds)
    for (const Piece& piece : round.*way)
      for (std::uint64_t i = 0; i < piece.count; ++i) ++times.at(piece.device_at + i);
  return times;
}

Request request_of(OpKind op, Rank ranks, std::uint64_t count) {
  Request request;
  request.op = op;
  request.world_size = ranks;
  request.rank = ranks - 1;
  request.count = count;
  request.order = collectives::order_for(op, ranks, count * 4, DType::kFloat32);
  return request;
}

TEST_CASE("staged rounds carry every element down and up once, within their slots") {
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather})
    for (const Rank ranks : {1, 2, 3, 7})
      for (const std::uint64_t count : {0, 1, 6, 7, 100, 1000, 1001, 5003})
        for (const std::uint64_t slot_count : {7, 64, 100'000}) {
          const Request request = request_of(op, ranks, count);
          const auto rounds = staged_rounds(request, slot_count);
          const std::uint64_t part = count - chunk_begin(count, ranks, ranks - 1);
          const bool gathers = op == OpKind::kAllGather;
          const bool scatters = op == OpKind::kReduceScatter;
          const std::uint64_t in = gathers ? part : count;
          const std::uint64_t out = scatters ? part : count;
          CAPTURE(count);
          CAPTURE(slot_count);
          CHECK(times_touched(rounds, &StagedRound::down, in) == std::vector<int>(in, 1));
          CHECK(times_touched(rounds, &StagedRound::up, out) == std::vector<int>(out, 1));
          for (const StagedRound& round : rounds) CHECK(round.slot_count <= slot_count);
        }
}

TEST_CASE("a staged ring keeps every element in its rank's part") {
  for (const Rank ranks : {2, 3, 5, 8})
    for (const std::uint64_t count : {1, 9, 64, 1000, 4097, 9999})
      for (const std::uint64_t slot_count : {8, 50, 1024}) {
        Request request = request_of(OpKind::kAllReduce, ranks, count);
        request.order = Order::kRing;
        for (const StagedRound& round : staged_rounds(request, slot_count))
          for (const Piece& piece : round.down)
            for (std::uint64_t i = 0; i < piece.count; ++i) {
              Rank whole = 0;
              while (chunk_begin(count, ranks, whole + 1) <= piece.device_at + i) ++whole;
              Rank within = 0;
              while (chunk_begin(round.request.count, ranks, within + 1) <= piece.slot_at + i)
                ++within;
              REQUIRE(whole == within);
            }
      }
}

TEST_CASE("all ranks cut into as many rounds, also where their parts are uneven") {
  for (const OpKind op : {OpKind::kReduceScatter, OpKind::kAllGather, OpKind::kGather,
                          OpKind::kScatter, OpKind::kBroadcast, OpKind::kReduce}) {
    Request request = request_of(op, 4, 1000);
    request.root = 2;
    if (op == OpKind::kReduceScatter || op == OpKind::kAllGather) request.counts = {0, 1, 700, 3};
    std::vector<std::size_t> rounds;
    for (request.rank = 0; request.rank < 4; ++request.rank) {
      const auto cut = staged_rounds(request, 128);
      rounds.push_back(cut.size());
      for (const StagedRound& round : cut) CHECK(round.slot_count <= 128);
    }
    CHECK(rounds == std::vector<std::size_t>(4, rounds[0]));
    CHECK(rounds[0] > 1);
  }
}

TEST_CASE("an all_to_all is one round, its output behind its input") {
  Request request = request_of(OpKind::kAllToAll, 3, 11);
  const auto even = staged_rounds(request, 4);
  REQUIRE(even.size() == 1);
  CHECK(even[0].down == std::vector<Piece>{{0, 0, 11}});
  CHECK(even[0].up == std::vector<Piece>{{0, 11, 12}});
  CHECK(even[0].output_at == 11);
  CHECK(even[0].slot_count == 23);
  request.counts = {1, 2, 3};
  request.recv_counts = {7, 0, 0};
  CHECK(staged_rounds(request, 4)[0].up == std::vector<Piece>{{0, 6, 7}});
}

TEST_CASE("segments of a hierarchy are rounds of their own") {
  const auto rounds = staged_rounds(request_of(OpKind::kAllReduce, 4, 1000), 512, 300);
  REQUIRE(rounds.size() == 4);
  CHECK(rounds[3].request.count == 100);
  CHECK(rounds[1].down == std::vector<Piece>{{300, 0, 300}});
  CHECK_THROWS_AS(staged_rounds(request_of(OpKind::kAllReduce, 4, 1000), 3), InternalError);
}

}  // namespace
}  // namespace gradring::testing::staged_rounds_test
