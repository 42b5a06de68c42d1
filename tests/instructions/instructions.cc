// The work of the hot paths, for counting: each case does one thing a number of times in one
// thread, with nothing that depends on time, and checks what came out. compare.py runs it under
// valgrind and holds the counts to baseline.json. Run: gradring_instructions CASE REPETITIONS, or
// without arguments for the names of the cases and what one repetition does.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/engine/run.h"
#include "collectives/plan/operation.h"
#include "ps/tables/merge.h"
#include "ps/tables/partition.h"
#include "ps/tables/sparse_table.h"
#include "support/collectives/flat_team.h"
#include "support/collectives/operations.h"
#include "support/ps/shard_rig.h"
#include "transport/links/memory_link.h"

namespace gradring::testing {
namespace {

constexpr std::size_t kRows = 4096;
constexpr std::size_t kCalls = 4096;
constexpr std::uint32_t kDim = 16;
constexpr std::uint64_t kSmall = 256;  // float32: 1 KiB.

void require(bool is_right, const char* what) {
  if (is_right) return;
  std::fprintf(stderr, "gradring_instructions: wrong answer: %s\n", what);
  std::exit(1);
}

Ids scattered_ids(std::size_t count, std::size_t distinct) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(ps::mix_id(i % distinct + 1));
  return ids;
}

class OnePeer final : public transport::Peers {
 public:
  std::unique_ptr<transport::MemoryLink> only;
  transport::Link* link(Rank) override { return only.get(); }
};

// Two ranks' runs of one plan, over a connection in memory.
void over_links(int repetitions) {
  const PlanCase c{.op = OpKind::kAllReduce,
                   .algorithm = collectives::Algorithm::kDoubling,
                   .world_size = 2,
                   .count = kSmall,
                   .order = collectives::Order::kTree};
  std::vector<Memory> memory = random_memory(c, 1);
  const auto expected = expected_outputs(c, memory);
  const std::vector<Memory> before = memory;
  const auto requests = c.requests();
  const collectives::Plan plans[] = {make_plan(requests[0], c.algorithm),
                                     make_plan(requests[1], c.algorithm)};
  std::vector<std::byte> scratch[2];
  const transport::MemoryWeather weather;
  const auto wire = std::make_shared<transport::MemoryWire>(weather, transport::MemoryScript{});
  OnePeer peers[2];
  for (const std::size_t rank : {0, 1}) {
    peers[rank].only = std::make_unique<transport::MemoryLink>(wire, rank);
    scratch[rank].resize(plans[rank].scratch_bytes + 64);
  }
  for (int i = 0; i < repetitions; ++i) {
    std::unique_ptr<collectives::PlanRun> runs[2];
    for (const std::size_t rank : {0, 1}) {
      memory[rank].bytes = before[rank].bytes;
      collectives::Operation operation;
      operation.request = requests[rank];
      std::byte* bytes = memory[rank].bytes.data();
      runs[rank] = std::make_unique<collectives::PlanRun>(
          plans[rank], call_of(operation), static_cast<std::uint64_t>(i) + 1, kernels::Reduction{},
          collectives::RunBuffers{bytes + memory[rank].input_at, bytes + memory[rank].output_at,
                                  scratch[rank].data()});
    }
    bool is_done[2] = {false, false};
    for (int turn = 0; turn < 100 && !(is_done[0] && is_done[1]); ++turn)
      for (const std::size_t rank : {0, 1})
        if (!is_done[rank]) is_done[rank] = runs[rank]->advance(peers[rank]);
    for (const std::size_t rank : {0, 1})
      require(is_done[rank] && memory[rank].output_is(expected[rank]), "all_reduce");
  }
}

void make_plans(int repetitions) {
  PlanCase c{.op = OpKind::kAllReduce, .world_size = 8, .count = 1u << 18};
  c.algorithm = collectives::Algorithm::kRing;
  const auto requests = c.requests();
  for (int i = 0; i < repetitions; ++i)
    require(!make_plan(requests[3], c.algorithm).actions.empty(), "plan");
}

// Who only sends does not wait: the ranks of a host take their turns in one thread.
void shared_memory(int repetitions) {
  FlatTeam team(2);
  PlanCase reduce{.op = OpKind::kReduce, .world_size = 2, .count = kSmall};
  reduce.order = collectives::Order::kTree;
  std::vector<Memory> memory = random_memory(reduce, 1);
  const auto expected = expected_outputs(reduce, memory);
  PlanCase broadcast{.op = OpKind::kBroadcast, .world_size = 2, .count = kSmall};
  std::vector<Memory> copies = random_memory(broadcast, 2);
  for (int i = 0; i < repetitions; ++i) {
    for (const Rank rank : {1, 0}) team.call(rank, reduce, memory[static_cast<std::size_t>(rank)]);
    for (const Rank rank : {0, 1})
      team.call(rank, broadcast, copies[static_cast<std::size_t>(rank)]);
  }
  require(memory[0].output_is(expected[0]), "reduce");
  require(copies[1].output_is(copies[0].input()), "broadcast");
}

// The call that most users make most often. Its ranks wait for each other, and how long is no
// count: so rank 1 posts its part as one does who only sends, under the same call, and rank 0, who
// comes after it, finds everything there.
void flat_all_reduce(int repetitions) {
  FlatTeam team(2);
  PlanCase c{.op = OpKind::kAllReduce, .world_size = 2, .count = kSmall};
  c.order = collectives::Order::kTree;
  std::vector<Memory> memory = random_memory(c, 1);
  const auto expected = expected_outputs(c, memory);
  const Call call{
      .op = OpKind::kAllReduce, .dtype = c.dtype, .reduce_op = c.reduce_op, .count = c.count};
  auto requests = c.requests();
  requests[1].op = OpKind::kReduce;
  requests[1].root = 0;
  for (int i = 0; i < repetitions; ++i)
    for (const Rank rank : {1, 0}) {
      Memory& own = memory[static_cast<std::size_t>(rank)];
      transport::Idle idle(team.group(rank), Millis{1000}, false);
      team.flat(rank).run(requests[static_cast<std::size_t>(rank)], call,
                          static_cast<std::uint64_t>(i) + 1, own.bytes.data() + own.input_at,
                          own.bytes.data() + own.output_at, idle);
    }
  require(memory[0].output_is(expected[0]), "all_reduce");
}

// What a communicator adds to any algorithm: it checks, counts, records and hands on. One rank,
// with nobody to wait for.
void call(int repetitions) {
  const auto comm = collectives::Communicator::join({});
  std::vector<std::int64_t> data(kSmall, 3);
  for (int i = 0; i < repetitions * static_cast<int>(kCalls); ++i) all_reduce(*comm, data);
  require(data == std::vector<std::int64_t>(kSmall, 3), "all_reduce");
  comm->close();
}

ps::TableSpec table_spec(kernels::RuleKind kind) {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = kDim;
  spec.rule.kind = kind;
  spec.init = {ps::InitKind::kUniform, -0.1F, 0.1F};
  return spec;
}

void pull_rows(int repetitions) {
  ps::SparseTable table(table_spec(kernels::RuleKind::kAdagrad));
  const Ids ids = scattered_ids(kRows, kRows);
  Values rows(kRows * kDim);
  table.apply(ids, rows.data(), 1, 1);
  for (int i = 0; i < repetitions; ++i) table.gather(ids, rows.data());
  require(table.size() == kRows, "rows");
}

void push_rows(int repetitions) {
  ps::SparseTable table(table_spec(kernels::RuleKind::kAdagrad));
  const Ids ids = scattered_ids(kRows, kRows);
  const Values given(kRows * kDim, 0.5F);
  Values gradients = given;
  table.apply(ids, gradients.data(), 1, 1);
  for (int i = 0; i < repetitions; ++i) {
    gradients = given;
    require(table.apply(ids, gradients.data(), 1, 1).rows == kRows, "rows");
  }
}

// Two lists in turn: the last one is remembered.
void merge_ids(int repetitions) {
  const Ids ids = scattered_ids(kRows, kRows / 4);
  const Ids lists[] = {ids, {ids.rbegin(), ids.rend()}};
  for (int i = 0; i < repetitions; ++i)
    require(ps::Distinct(lists[i % 2], 2).ids().size() == kRows / 4, "distinct ids");
}

// A pull of one row and a push to it, from a client's frames to the answers'.
void small_requests(int repetitions) {
  ShardRig rig;
  Guest guest = rig.enter(1);
  rig.ask(guest, make_table(sum_table("sums", 4)));
  for (int i = 0; i < repetitions; ++i) {
    rig.ask(guest, push("sums", {7}, {1, 1, 1, 1}));
    rig.ask(guest, pull("sums", {7}));
    rig.journal.records.clear();
  }
  const ps::Frame answer = rig.ask(guest, pull("sums", {7}));
  const Values row = rows_of(answer.header, answer.payload, 4).rows;
  require(row == Values(4, static_cast<float>(repetitions)), "sums");
}

struct Case {
  const char* name;
  const char* unit;  // What is counted: `per_repetition` of them each time.
  std::size_t per_repetition;
  void (*run)(int repetitions);
};

constexpr Case kCases[] = {
    {"all_reduce", "all_reduce of 1 KiB by two ranks over links", 1, over_links},
    {"call", "call of a communicator of one rank", kCalls, call},
    {"plan", "ring plan of 1 MiB for 8 ranks", 1, make_plans},
    {"shared_memory", "reduce and broadcast of 1 KiB by two ranks", 1, shared_memory},
    {"flat", "all_reduce of 1 KiB of one of two ranks, the other's there", 1, flat_all_reduce},
    {"pull", "row of 16 floats read", kRows, pull_rows},
    {"push", "row of 16 floats updated by Adagrad", kRows, push_rows},
    {"merge", "id, each four times in the list", kRows, merge_ids},
    {"request", "pull and push of one row at a shard", 1, small_requests},
};

}  // namespace
}  // namespace gradring::testing

int main(int argc, char** argv) {
  using gradring::testing::kCases;
  for (const auto& each : kCases) {
    if (argc < 3) std::printf("%s\t%zu\t%s\n", each.name, each.per_repetition, each.unit);
    if (argc >= 3 && std::string(each.name) == argv[1]) {
      each.run(std::atoi(argv[2]));
      return 0;
    }
  }
  return argc < 3 ? 0 : 2;
}
