// The pieces of plan.h one by one: cutting, orders, the builder, what make_plan accepts, and how
// large plans get. Also that the interpreter and the rules, which the other plan tests lean on, do
// notice a broken plan.
#include "collectives/plan/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/plan/parts.h"
#include "support/collectives/plan_cases.h"
#include "support/collectives/plan_interpreter.h"
#include "support/collectives/plan_rules.h"

namespace gradring::testing::plan_test {
namespace {

using namespace collectives;

constexpr std::uint32_t kNothing = PlanBuilder::kNothing;

TEST_CASE("chunk_begin: chunks tile the vector and differ by at most one element") {
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6},
                                    std::uint64_t{7}, std::uint64_t{1000003}}) {
    for (const Rank parts : {1, 2, 3, 7, 64}) {
      CAPTURE(count);
      CAPTURE(parts);
      CHECK(chunk_begin(count, parts, 0) == 0);
      CHECK(chunk_begin(count, parts, parts) == count);
      for (Rank i = 0; i < parts; ++i) {
        const std::uint64_t size = chunk_begin(count, parts, i + 1) - chunk_begin(count, parts, i);
        CHECK(size - count / static_cast<std::uint64_t>(parts) <= 1);
      }
    }
  }
}

TEST_CASE("chunk_begin: exact where count times index does not fit 64 bits") {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  __extension__ using Wide = unsigned __int128;
  for (const std::uint64_t count : {kMost, kMost - 1, kMost / 3, std::uint64_t{1} << 63}) {
    for (const Rank parts : {1, 2, 3, 10007, std::numeric_limits<Rank>::max()}) {
      for (const Rank index : {0, 1, parts / 2, parts - 1, parts}) {
        const auto exact =
            Wide{count} * static_cast<unsigned>(index) / static_cast<unsigned>(parts);
        CHECK(chunk_begin(count, parts, index) == static_cast<std::uint64_t>(exact));
      }
    }
  }
}

TEST_CASE("Parts: pieces tile their part, and none is larger than kPieceBytes") {
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{70001}, std::uint64_t{3000001}}) {
    const Parts parts(std::array{count, count / 2, std::uint64_t{1}}, 4);
    const Rank columns = pieces_of(parts.largest_bytes());
    CHECK(parts.bytes() == 4 * (count + count / 2 + 1));
    std::uint64_t at = 0;
    for (Rank part = 0; part < parts.size(); ++part) {
      CHECK(parts.part(part).begin_bytes == at);
      for (Rank column = 0; column < columns; ++column) {
        const Extent piece = parts.piece(part, column, columns);
        CHECK(piece.begin_bytes == at);
        CHECK(piece.bytes <= std::min(kPieceBytes, parts.largest_piece_bytes(columns)));
        at = piece.end_bytes();
      }
    }
    CHECK(at == parts.bytes());
  }
}

TEST_CASE("pieces_of: four pieces where they are large enough to be worth it") {
  CHECK(pieces_of(0) == 1);
  CHECK(pieces_of(16 * 1024) == 1);
  CHECK(pieces_of(64 * 1024) == 4);
  CHECK(pieces_of(4 * kPieceBytes) == 4);
  CHECK(pieces_of(4 * kPieceBytes + 1) == 5);
  CHECK(pieces_of(std::uint64_t{1} << 40) == 1 << 22);
}

TEST_CASE("operand_ranks: a ring ends at the chunk's owner, tree and rank order start at rank 0") {
  CHECK(operand_ranks(Order::kRing, 4, 1) == std::vector<Rank>{2, 3, 0, 1});
  CHECK(operand_ranks(Order::kRing, 4, 3) == std::vector<Rank>{0, 1, 2, 3});
  CHECK(operand_ranks(Order::kTree, 3, 1) == std::vector<Rank>{0, 1, 2});
  CHECK(operand_ranks(Order::kRank, 3, 2) == std::vector<Rank>{0, 1, 2});
  CHECK(operand_ranks(Order::kRing, 1, 0) == std::vector<Rank>{0});
  CHECK(fold_of(Order::kTree) == kernels::Fold::kTree);
  CHECK(fold_of(Order::kRing) == kernels::Fold::kLeft);
  CHECK(fold_of(Order::kRank) == kernels::Fold::kLeft);
}

TEST_CASE(
    "order_for: what is small is added up in a tree, and in the same order by all that reduce") {
  constexpr std::uint64_t kMiB = 1024 * 1024;
  const auto order = [](OpKind op, Rank n, std::uint64_t bytes) {
    return order_for(op, n, bytes, DType::kFloat32);
  };
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
    CHECK(order(op, 2, 4) == Order::kRing);
    CHECK(order(op, 4, kMiB) == Order::kTree);
    CHECK(order(op, 4, kMiB + 1) == Order::kRing);
    CHECK(order(op, 64, 2 * kMiB) == Order::kTree);
    CHECK(order(op, 64, 2 * kMiB + 1) == Order::kRing);
    CHECK(order(op, 1024, 32 * kMiB) == Order::kTree);
    CHECK(order(op, 1024, 32 * kMiB + 1) == Order::kRing);
  }
  CHECK(order(OpKind::kAllGather, 4, 4) == Order::kRing);
}

TEST_CASE("PlanBuilder: nothing is asked for zero bytes, and waiting for nothing is free") {
  PlanBuilder builder;
  CHECK(builder.send(1, {}, 0) == kNothing);
  CHECK(builder.recv(1, {}, 0) == kNothing);
  CHECK(builder.copy({}, {}, 0) == kNothing);
  CHECK(builder.reduce({}, {}, 0, kernels::Fold::kLeft, true) == kNothing);
  const std::uint32_t sent = builder.send(1, {}, 4, {{kNothing, kNothing}});
  const Plan plan = std::move(builder).finish(Algorithm::kRing);
  REQUIRE(plan.actions.size() == 1);
  CHECK(plan.actions[sent].wait_count == 0);
  CHECK(plan.sources.empty());
}

TEST_CASE("PlanBuilder: edges are counted once and listed at the action that must come first") {
  PlanBuilder builder;
  const std::uint32_t a = builder.send(1, {}, 4);
  const std::uint32_t b = builder.send(2, {}, 4, {{a}});
  const std::uint32_t c = builder.recv(1, {Place::kOutput, 0}, 4, {{a, b, a}});
  const Plan plan = std::move(builder).finish(Algorithm::kDirect);
  CHECK(plan.actions[c].wait_count == 2);
  CHECK(plan.actions[a].dependent_count == 2);
  CHECK(plan.dependents[plan.actions[a].first_dependent] == b);
  CHECK(plan.dependents[plan.actions[a].first_dependent + 1] == c);
  CHECK(plan.dependents[plan.actions[b].first_dependent] == c);
  CHECK(plan.algorithm == Algorithm::kDirect);
}

TEST_CASE("PlanBuilder: an action that waits for a later one is our bug") {
  PlanBuilder builder;
  CHECK_THROWS_AS(builder.send(1, {}, 4, {{0}}), InternalError);
}

TEST_CASE("PlanBuilder: scratch is aligned and never handed out twice") {
  PlanBuilder builder;
  CHECK(builder.scratch(1).offset_bytes == 0);
  CHECK(builder.scratch(65).offset_bytes == 64);
  CHECK(builder.scratch(64).offset_bytes == 192);
  CHECK(std::move(builder).finish(Algorithm::kRing).scratch_bytes == 256);
}

Request request_of(OpKind op, Order order, DType dtype = DType::kFloat32, Rank n = 4) {
  return {.op = op,
          .dtype = dtype,
          .world_size = n,
          .count = 64,
          .counts = {},
          .recv_counts = {},
          .order = order};
}

TEST_CASE(
    "algorithms_for: only those that give the order; 16-bit floats are never passed on rounded") {
  using List = std::vector<Algorithm>;
  const auto all_reduce = [](Order order, DType dtype) {
    return algorithms_for(request_of(OpKind::kAllReduce, order, dtype));
  };
  const List any_order{Algorithm::kDirect, Algorithm::kGather};
  CHECK(all_reduce(Order::kRing, DType::kFloat32) ==
        List{Algorithm::kRing, Algorithm::kDirect, Algorithm::kGather});
  CHECK(all_reduce(Order::kTree, DType::kFloat64) ==
        List{Algorithm::kDoubling, Algorithm::kHalving, Algorithm::kDirect, Algorithm::kGather});
  CHECK(all_reduce(Order::kRank, DType::kFloat32) == any_order);
  for (const Order order : {Order::kRing, Order::kTree, Order::kRank}) {
    CHECK(all_reduce(order, DType::kFloat16) == any_order);
    CHECK(all_reduce(order, DType::kBFloat16) == any_order);
    CHECK(all_reduce(order, DType::kInt32).size() == 5);  // Integers show no order.
  }
  CHECK(algorithms_for(request_of(OpKind::kAllGather, Order::kRing, DType::kFloat16)).size() == 3);
  CHECK(algorithms_for(request_of(OpKind::kSend, Order::kRing)).empty());
}

TEST_CASE("make_plan: refuses what it cannot do and names what it can") {
  const auto text_of = [](const Request& request, Algorithm algorithm) -> std::string {
    try {
      make_plan(request, algorithm);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  const Request all_reduce = request_of(OpKind::kAllReduce, Order::kRank);
  CHECK(text_of(all_reduce, Algorithm::kRing) ==
        "all_reduce of float32, added in rank order, cannot use the algorithm 'ring'; it can use: "
        "direct, gather");
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kFlat, Algorithm::kHierarchical}) {
    CHECK(text_of(all_reduce, algorithm) != "no error");
  }
  CHECK(text_of(request_of(OpKind::kSend, Order::kRing), Algorithm::kDirect) != "no error");
}

TEST_CASE("make_plan: ranks, roots and lists of counts that do not fit the world are refused") {
  Request request = request_of(OpKind::kBroadcast, Order::kRing);
  request.root = 4;
  CHECK_THROWS_AS(make_plan(request, Algorithm::kRing), InvalidArgument);
  request = request_of(OpKind::kBroadcast, Order::kRing);
  request.rank = -1;
  CHECK_THROWS_AS(make_plan(request, Algorithm::kRing), InvalidArgument);
  request = request_of(OpKind::kAllGather, Order::kRing);
  request.counts = {1, 2, 3};
  CHECK_THROWS_AS(make_plan(request, Algorithm::kRing), InvalidArgument);
  request = request_of(OpKind::kAllToAll, Order::kRing);
  request.counts = {1, 2, 3, 4};
  CHECK_THROWS_AS(make_plan(request, Algorithm::kDirect), InvalidArgument);
  request.recv_counts = {2, 5, 6, 7};  // Rank 0 sends itself 1 and takes 2: over the end of what?
  CHECK_THROWS_AS(make_plan(request, Algorithm::kDirect), InvalidArgument);
  request.recv_counts[0] = 1;
  CHECK_NOTHROW(make_plan(request, Algorithm::kDirect));
  request.world_size = 1;
  request.counts = {4};
  request.recv_counts = {1};
  CHECK_THROWS_AS(make_plan(request, Algorithm::kDirect), InvalidArgument);
}

TEST_CASE(
    "broadcast by doubling: every rank is reached once, and each further host, in one message") {
  for (Rank n = 1; n <= 33; ++n) {
    for (const bool spans_hosts : {false, true}) {
      for (const Rank root : {0, n / 2, n - 1}) {
        CAPTURE(n);
        CAPTURE(spans_hosts);
        CAPTURE(root);
        std::vector<Rank> givers(static_cast<std::size_t>(n), -1);
        std::vector<Rank> sources = givers;
        int between_hosts = 0;  // Of four ranks each.
        std::size_t most_sends = 0;
        for (Rank rank = 0; rank < n; ++rank) {
          Request request = request_of(OpKind::kBroadcast, Order::kRing, DType::kFloat32, n);
          request.rank = rank;
          request.root = root;
          request.count = 10;
          request.spans_hosts = spans_hosts;
          std::size_t sends = 0;
          for (const Action& action : make_plan(request, Algorithm::kDoubling).actions) {
            if (action.kind == ActionKind::kRecv)
              sources[static_cast<std::size_t>(rank)] = action.peer;
            if (action.kind != ActionKind::kSend) continue;
            CHECK(givers[static_cast<std::size_t>(action.peer)] == -1);
            givers[static_cast<std::size_t>(action.peer)] = rank;
            between_hosts += rank / 4 != action.peer / 4 ? 1 : 0;
            ++sends;
          }
          most_sends = std::max(most_sends, sends);
        }
        CHECK(givers == sources);
        CHECK(std::ranges::count(givers, -1) == 1);
        CHECK(givers[static_cast<std::size_t>(root)] == -1);
        CHECK((std::size_t{1} << most_sends) < 2 * static_cast<std::size_t>(n));
        if (spans_hosts && root == 0) CHECK(between_hosts == (n - 1) / 4);
      }
    }
  }
}

TEST_CASE("plan: scratch is a few pieces a rank and actions a few a piece, up to 4 GiB") {
  for (const Rank n : {2, 3, 4, 8, 33}) {
    for (const std::uint64_t count : {std::uint64_t{1} << 20, std::uint64_t{1} << 30}) {
      for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kReduce}) {
        for (const Order order : {Order::kRing, Order::kTree}) {
          Request request = request_of(op, order, DType::kFloat32, n);
          request.count = count;
          for (const Algorithm algorithm : algorithms_for(request)) {
            if (count > (1u << 20) && algorithm == Algorithm::kGather) continue;  // n times 4 GiB.
            CAPTURE(n);
            CAPTURE(name(algorithm));
            const Plan plan = make_plan(request, algorithm);
            const auto ranks = static_cast<std::uint64_t>(n);
            CHECK(plan.scratch_bytes <= 8 * ranks * kPieceBytes);
            // Long ways ask for more, but never for more than twice the vector.
            Request far = request;
            far.pieces_on_way = 0xffff;
            CHECK(make_plan(far, algorithm).scratch_bytes <=
                  std::max(plan.scratch_bytes, 2 * count * 4 + 8 * ranks * 4096));
            const std::uint64_t pieces = count * 4 / kPieceBytes + 4 * ranks;
            const bool moves_everything = algorithm == Algorithm::kGather;
            CHECK(plan.actions.size() <= (moves_everything ? 3 * ranks : 20) * pieces);
          }
        }
      }
    }
  }
}

TEST_CASE("plan: a world of one copies its input, a barrier of one does nothing") {
  for (const Algorithm algorithm : algorithms_for(request_of(OpKind::kAllReduce, Order::kRing))) {
    const Plan plan =
        make_plan(request_of(OpKind::kAllReduce, Order::kRing, DType::kFloat16, 1), algorithm);
    REQUIRE(plan.actions.size() == 1);
    CHECK(plan.actions[0].kind == ActionKind::kCopy);
    CHECK(plan.actions[0].bytes == 128);
  }
  CHECK(
      make_plan(request_of(OpKind::kBarrier, Order::kRing, DType::kUInt8, 1), Algorithm::kDoubling)
          .actions.empty());
}

// A two-rank all_reduce of four floats, to be broken in one place.
struct Broken {
  PlanCase c{.algorithm = Algorithm::kGather, .world_size = 2, .count = 4, .is_in_place = true};
  std::vector<Plan> plans;
  std::vector<Memory> memory = random_memory(c, 1);

  Broken() {
    for (const Request& request : c.requests()) plans.push_back(make_plan(request, c.algorithm));
  }
  std::string play_it() { return play(c, plans, memory, {}); }
  std::string rule() { return broken_rule(plans[0], memory[0], 0, 2); }
};

TEST_CASE("the rules notice a missing wait, a miscount, a write to input and a stray access") {
  CHECK(Broken().rule() == "");
  Broken race;
  for (Action& action : race.plans[0].actions) {
    action.wait_count = action.dependent_count = 0;
  }
  race.plans[0].dependents.clear();
  CHECK(race.rule().find("touch the same bytes") != std::string::npos);
  Broken miscount;
  ++miscount.plans[0].actions.back().wait_count;
  CHECK(miscount.rule().find("miscounts") != std::string::npos);
  Broken input_written;
  input_written.plans[0].actions.back().at.place = Place::kInput;
  CHECK(input_written.rule().find("writes input") != std::string::npos);
  Broken stray;
  stray.plans[0].actions.back().at.offset_bytes = 12;
  CHECK(stray.rule().find("leaves its buffer") != std::string::npos);
}

TEST_CASE(
    "the interpreter notices ranks that wait for ever, unread bytes and output written too early") {
  CHECK(Broken().play_it() == "");
  Broken stuck;
  ++stuck.plans[0].actions.front().wait_count;
  CHECK(stuck.play_it().find("everybody waits") != std::string::npos);
  Broken unread;
  unread.plans[0].actions.clear();
  unread.plans[1] = {};
  PlanBuilder chatter;
  chatter.send(1, {}, 4);
  unread.plans[0] = std::move(chatter).finish(Algorithm::kGather);
  CHECK(unread.play_it().find("unread") != std::string::npos);
  Broken early;
  PlanBuilder hasty;
  hasty.copy({Place::kOutput, 0}, {Place::kInput, 4}, 4);
  early.plans = {std::move(hasty).finish(Algorithm::kGather), {}};
  CHECK(early.play_it().find("before it has heard from rank 1") != std::string::npos);
}

}  // namespace
}  // namespace gradring::testing::plan_test
