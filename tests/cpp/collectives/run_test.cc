// PlanRun over links that are slow, short or broken: the same bits as the plan says, different
// calls found in the first bytes, and how far it got when a link ends.
#include "collectives/engine/run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "collectives/plan/operation.h"
#include "support/collectives/plan_cases.h"
#include "transport/links/memory_link.h"

namespace gradring::testing::run_test {
namespace {

using collectives::Algorithm;
using collectives::LinkClosed;
using collectives::Plan;
using collectives::PlanRun;
using transport::MemoryLink;
using transport::MemoryScript;
using transport::MemoryWire;

constexpr std::uint64_t kSeq = 42;

// The links of one rank, made before the run.
class Fixed final : public transport::Peers {
 public:
  explicit Fixed(Rank ranks) : links(static_cast<std::size_t>(ranks)) {}
  transport::Link* link(Rank peer) override { return links[static_cast<std::size_t>(peer)].get(); }
  std::vector<std::unique_ptr<transport::Link>> links;
};

// Counts the calls that moved something.
class Counted final : public transport::Link {
 public:
  explicit Counted(std::unique_ptr<transport::Link> link) : link_(std::move(link)) {}
  transport::Io send_some(std::span<const std::byte> head,
                          std::span<const std::byte> body) override {
    return count(link_->send_some(head, body));
  }
  transport::Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override {
    return count(link_->recv_some(head, body));
  }
  bool prepare_sleep(bool, bool) override { return false; }
  void finish_sleep() override {}
  int fd() const override { return -1; }
  short poll_events(bool, bool) const override { return 0; }
  std::string peer_address() const override { return link_->peer_address(); }

  int calls = 0;

 private:
  transport::Io count(transport::Io io) {
    if (io.bytes > 0) ++calls;
    return io;
  }
  std::unique_ptr<transport::Link> link_;
};

// All ranks of one collective, each with its plan, memory and links.
class Group {
 public:
  Group(const std::vector<PlanCase>& calls, const MemoryScript& script, std::uint64_t seq_step = 0)
      : calls_(calls) {
    const auto ranks = static_cast<Rank>(calls.size());
    weather.short_percent = 40;
    for (Rank rank = 0; rank < ranks; ++rank) {
      peers.emplace_back(ranks);
      const PlanCase& c = calls[static_cast<std::size_t>(rank)];
      plans.push_back(agreed_plan(c.requests()[static_cast<std::size_t>(rank)], c.algorithm));
      memory.push_back(random_memory(c, 5)[static_cast<std::size_t>(rank)]);
      scratch.emplace_back(plans.back().scratch_bytes + 64);
    }
    for (Rank a = 0; a < ranks; ++a)
      for (Rank b = a + 1; b < ranks; ++b) connect(a, b, script);
    before = memory;
    runs.resize(calls.size());
    for (Rank rank = 0; rank < ranks; ++rank)
      start(rank, kSeq + seq_step * static_cast<unsigned>(rank));
  }

  void start(Rank rank, std::uint64_t seq) {
    const auto i = static_cast<std::size_t>(rank);
    const PlanCase& c = calls_[i];
    collectives::Operation operation;
    operation.request = c.requests()[i];
    kernels::Reduction reduction;
    reduction.dtype = c.dtype;
    reduction.op = c.reduce_op;
    Memory& mine = memory[i];
    runs[i] = std::make_unique<PlanRun>(
        plans[i], call_of(operation), seq, reduction,
        collectives::RunBuffers{mine.bytes.data() + mine.input_at,
                                mine.bytes.data() + mine.output_at, scratch[i].data()});
  }

  // Lets every rank advance in turn until all are done or nothing moves. Throws what a run throws.
  bool play() {
    std::vector<bool> is_done(runs.size());
    for (int idle = 0; idle < 50; ++idle) {
      for (std::size_t rank = 0; rank < runs.size(); ++rank) {
        if (is_done[rank]) continue;
        is_done[rank] = runs[rank]->advance(peers[rank]);
        if (is_done[rank] || runs[rank]->has_moved()) idle = 0;
      }
      if (std::find(is_done.begin(), is_done.end(), false) == is_done.end()) return true;
      weather.now += Millis{1};
    }
    return false;
  }

  transport::MemoryWeather weather;
  std::vector<Fixed> peers;
  std::vector<Plan> plans;
  std::vector<Memory> memory;
  std::vector<Memory> before;
  std::vector<std::vector<std::byte>> scratch;
  std::vector<std::shared_ptr<MemoryWire>> wires;
  std::vector<std::unique_ptr<PlanRun>> runs;

 private:
  void connect(Rank a, Rank b, MemoryScript script) {
    script.seed += static_cast<std::uint64_t>(a * 100 + b);
    auto wire = std::make_shared<MemoryWire>(weather, script);
    wires.push_back(wire);
    peers[static_cast<std::size_t>(a)].links[static_cast<std::size_t>(b)] =
        std::make_unique<MemoryLink>(wire, 0);
    peers[static_cast<std::size_t>(b)].links[static_cast<std::size_t>(a)] =
        std::make_unique<MemoryLink>(wire, 1);
  }

  std::vector<PlanCase> calls_;
};

PlanCase all_reduce(Rank ranks, std::uint64_t count, Algorithm algorithm) {
  return {.op = OpKind::kAllReduce,
          .algorithm = algorithm,
          .world_size = ranks,
          .count = count,
          .order = algorithm == Algorithm::kDoubling ? collectives::Order::kTree
                                                     : collectives::Order::kRing};
}

// The mismatch that some rank of the group finds; "" if none does.
std::string mismatch_of(Group& group) {
  try {
    group.play();
  } catch (const Mismatch& mismatch) {
    return mismatch.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a run over slow and short links gives the documented bits") {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubling, Algorithm::kDirect}) {
    for (const std::size_t link_bytes : {1, 65, 4096}) {
      const PlanCase c = all_reduce(5, 1003, algorithm);
      Group group(std::vector<PlanCase>(5, c), {.seed = 3, .capacity_bytes = link_bytes});
      group.weather.max_delay = Millis{3};
      CAPTURE(c.text());
      CAPTURE(link_bytes);
      REQUIRE(group.play());
      const auto expected = expected_outputs(c, group.before);
      for (std::size_t rank = 0; rank < 5; ++rank)
        CHECK(group.memory[rank].output_is(expected[rank]));
    }
  }
}

TEST_CASE("a run says what it waits for") {
  const PlanCase c = all_reduce(2, 1000, Algorithm::kRing);
  Group group({c, c}, {.capacity_bytes = 100});
  group.weather.short_percent = 0;
  CHECK_FALSE(group.runs[0]->advance(group.peers[0]));
  CHECK(group.runs[0]->has_moved());
  CHECK_FALSE(group.runs[0]->advance(group.peers[0]));
  CHECK_FALSE(group.runs[0]->has_moved());
  std::vector<transport::Interest> interests;
  group.runs[0]->interests(group.peers[0], interests);
  REQUIRE(interests.size() == 1);
  CHECK(interests[0].link == group.peers[0].links[1].get());
  CHECK(interests[0].wants_recv);
  CHECK(interests[0].wants_send);
  bool shows_sent = false;
  for (const auto& stream : group.runs[0]->unfinished())
    if (!stream.is_recv) shows_sent = stream.bytes == 100 - wire::kOpHeaderBytes;
  CHECK(shows_sent);
}

TEST_CASE(
    "of ranks that have only to say that they are in the call a run tells those not heard of") {
  const PlanCase c = all_reduce(5, 1000, Algorithm::kRing);
  Group group(std::vector<PlanCase>(5, c), {.capacity_bytes = 100});
  group.runs[0]->advance(group.peers[0]);
  std::string text;
  for (const auto& stream : group.runs[0]->unfinished())
    text += str(stream.is_recv ? " from " : " to ", stream.peer, ": ", stream.expected_bytes);
  CHECK(text == " from 4: 6400 from 3: 0 from 1: 0 to 1: 6400");
}

TEST_CASE("different calls are found, both are shown, and no payload is reduced") {
  const PlanCase right = all_reduce(2, 500, Algorithm::kRing);
  std::vector<PlanCase> wrongs(4, right);
  wrongs[0].count = 501;
  wrongs[1].dtype = DType::kInt32;
  wrongs[2].reduce_op = ReduceOp::kMax;
  wrongs[3].op = OpKind::kReduceScatter;
  for (const PlanCase& wrong : wrongs) {
    Group group({right, wrong}, {.seed = 9});
    const std::string text = mismatch_of(group);
    CAPTURE(wrong.text());
    CAPTURE(text);
    CHECK(contains(text, "all_reduce #42 (float32 x 500, sum)"));
    CHECK(contains(text, "but rank"));
    for (std::size_t rank = 0; rank < 2; ++rank)
      CHECK((group.memory[rank].bytes == group.before[rank].bytes));
  }
}

TEST_CASE("a rank that is one call ahead is found") {
  const PlanCase c = all_reduce(2, 500, Algorithm::kRing);
  Group group({c, c}, {}, 1);
  const std::string text = mismatch_of(group);
  CHECK(contains(text, "#42"));
  CHECK(contains(text, "#43"));
}

TEST_CASE("counts between two ranks of an all_to_all that do not fit are found") {
  PlanCase c{.op = OpKind::kAllToAll,
             .algorithm = Algorithm::kDirect,
             .world_size = 2,
             .count = 400,
             .has_uneven_counts = true};
  PlanCase other = c;
  other.count = 800;
  Group group({c, other}, {});
  const std::string text = mismatch_of(group);
  CAPTURE(text);
  CHECK(contains(text, "expecting "));
  CHECK(contains(text, "sending "));
}

TEST_CASE("counts that the call does not show are told without what only says that ranks agree") {
  const PlanCase c{.op = OpKind::kReduceScatter,
                   .algorithm = Algorithm::kRing,
                   .world_size = 3,
                   .count = 300,
                   .has_uneven_counts = true};
  Group group({c, c, c}, {.capacity_bytes = 1 << 20});
  group.weather.short_percent = 0;
  collectives::Request other = c.requests()[2];
  std::rotate(other.counts.begin(), other.counts.begin() + 1, other.counts.end());
  group.plans[2] = collectives::agreed_plan(other, c.algorithm);
  group.start(2, kSeq);
  CHECK_FALSE(group.runs[2]->advance(group.peers[2]));
  const std::uint64_t item = item_bytes(c.dtype);
  const auto mine = c.requests()[0].counts;
  std::string text;
  try {
    group.runs[0]->advance(group.peers[0]);
  } catch (const Mismatch& mismatch) {
    text = mismatch.what();
  }
  CAPTURE(text);
  // A ring's step brings all parts but the one that is this rank's neighbour's.
  CHECK(contains(text, str("expecting ", (mine[0] + mine[1]) * item, " bytes")));
  CHECK(contains(text, str("sending ", (other.counts[0] + other.counts[1]) * item)));
}

TEST_CASE("bytes that are no operation header are a protocol error") {
  const PlanCase c = all_reduce(2, 500, Algorithm::kRing);
  Group group({c, c}, {.capacity_bytes = 1 << 20});
  const std::vector<std::byte> garbage(256, std::byte{0x5a});
  group.weather.short_percent = 0;
  group.peers[1].links[0]->send_some({}, garbage);
  CHECK_THROWS_AS(group.runs[0]->advance(group.peers[0]), ProtocolError);
}

TEST_CASE("a link that ends says whose it was and how far it got, for every byte it may end at") {
  const PlanCase c = all_reduce(2, 100, Algorithm::kRing);
  const std::uint64_t whole = 2 * (wire::kOpHeaderBytes + 400);
  for (std::uint64_t byte = 0; byte < whole; byte += 13) {
    Group group({c, c}, {.seed = byte, .break_at_byte = byte});
    CAPTURE(byte);
    bool has_ended = false;
    try {
      group.play();
    } catch (const LinkClosed& end) {
      has_ended = true;
      CHECK((end.peer == 0 || end.peer == 1));
      CHECK(end.expected_bytes == 400);
      CHECK(end.bytes <= 400);
      CHECK(end.bytes <= byte);
    }
    CHECK(has_ended);
  }
}

TEST_CASE("pieces that lie together in memory go in one call, and come in two") {
  PlanCase c{
      .op = OpKind::kBroadcast, .algorithm = Algorithm::kDirect, .world_size = 2, .count = 1 << 14};
  Group group({c, c}, {.capacity_bytes = 1 << 20});
  group.weather.short_percent = 0;
  REQUIRE(group.plans[0].actions.size() > 2);
  std::array<Counted*, 2> links{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    auto& link = group.peers[rank].links[1 - rank];
    auto counted = std::make_unique<Counted>(std::move(link));
    links[rank] = counted.get();
    link = std::move(counted);
  }
  REQUIRE(group.play());
  CHECK(links[0]->calls == 1);
  CHECK(links[1]->calls == 2);  // The header alone: a wrong call must not reach the user's memory.
  CHECK(group.memory[1].output_is(group.before[0].input()));
}

TEST_CASE("what was sent before a peer went is still received") {
  PlanCase c{
      .op = OpKind::kBroadcast, .algorithm = Algorithm::kDirect, .world_size = 2, .count = 1000};
  Group group({c, c}, {.capacity_bytes = 1 << 20});
  group.weather.short_percent = 0;
  REQUIRE(group.runs[0]->advance(group.peers[0]));
  group.peers[0].links.clear();
  REQUIRE(group.runs[1]->advance(group.peers[1]));
  CHECK(group.memory[1].output_is(group.before[0].input()));
}

}  // namespace
}  // namespace gradring::testing::run_test
