// The counting program: pushes integers to a few hot and many cold rows, pulls them, and judges
// what it sees: its own pushes are there, nothing goes back behind what it had seen when it asked
// (of pulls under way at once any may be answered first), nothing is there that nobody pushed.
#include <algorithm>
#include <deque>

#include "base/text.h"
#include "sim/ps/upkeep.h"
#include "sim/ps/world.h"

namespace gradring::sim {
namespace {

constexpr std::uint64_t kHotRows = 3;
constexpr std::uint64_t kColdRows = 300;

class Counting final : public PsProgram {
 public:
  Counting(PsClient& client, PsWorld& world) : client_(client), world_(world) {}

  bool is_over() const override {
    return has_given_up_ || (has_begun_ && steps_left_ == 0 && under_way_.empty());
  }

  void step() override {
    if (!has_begun_) begin();
    world_.ledger.settle();
    while (!under_way_.empty() && under_way_.front().call->is_done()) {
      const Sent sent = std::move(under_way_.front());
      under_way_.pop_front();
      const bool is_good = world_.has_succeeded(client_, *sent.call);
      // Without tables there is nothing to do.
      if (!is_good && sent.kind == Kind::kTables) has_given_up_ = true;
      if (!is_good && sent.kind == Kind::kPush) has_lost_pushes_ = true;
      if (is_good && sent.kind == Kind::kPull) judge(sent);
      if (is_good && sent.kind == Kind::kDense) judge_dense(sent);
      if (is_good && sent.kind == Kind::kUpkeep)
        keep_up(go_on_with({sent.call, sent.rules}, client_, world_));
      if (is_good && sent.kind == Kind::kPoison)
        world_.complain("a request that makes no sense was answered");
    }
    if (has_given_up_) return;
    while (steps_left_ > 0 && under_way_.size() < world_.scenario.depth) {
      --steps_left_;
      const std::uint64_t choice = world_.dice.below(100);
      if (world_.scenario.has_poison && client_.number() == 0 && steps_left_ == 2)
        poison();
      else if (choice < 55)
        push();
      else if (choice < 83)
        pull();
      else if (choice < 90)
        pull_dense();
      else
        keep_up(submit_upkeep(client_, world_));
    }
  }

 private:
  enum class Kind : std::uint8_t { kTables, kPush, kPull, kDense, kUpkeep, kPoison };
  struct Sent {
    Kind kind = Kind::kPush;
    CallPtr call = nullptr;
    std::shared_ptr<ps::RuleChange> rules = nullptr;
    std::vector<std::vector<std::uint64_t>> ids = {};  // Of each part.
    // When it was asked for: what the own column must have, and what was seen before.
    std::map<std::uint64_t, float> least = {};
    std::map<std::uint64_t, SeenRow> before = {};
    std::vector<float> least_dense = {};
    std::vector<float> dense_before = {};
  };

  void begin() {
    has_begun_ = true;
    steps_left_ = world_.scenario.steps;
    std::vector<Addressed> requests;
    for (const ps::TableSpec& spec :
         {counts_table(world_.scenario), adagrad_table(), dense_table(world_.scenario)})
      for (std::uint32_t shard = 0; shard < client_.shards(); ++shard)
        requests.push_back({shard, testing::make_table(spec)});
    under_way_.push_back({.kind = Kind::kTables, .call = client_.submit("make tables", requests)});
  }

  std::vector<std::uint64_t> some_ids() {
    std::set<std::uint64_t> ids;
    for (std::uint64_t left = 1 + world_.dice.below(8); left > 0; --left)
      ids.insert(world_.dice.percent(40) ? world_.dice.below(kHotRows)
                                         : kHotRows + world_.dice.below(kColdRows));
    return {ids.begin(), ids.end()};
  }

  void push() {
    const auto value = static_cast<float>(1 + world_.dice.below(5));
    auto requests = world_.ledger.write_push(client_, some_ids(), value, world_.dice);
    if (world_.dice.percent(40)) {
      const auto ids = by_shard(some_ids(), client_.shards());
      for (std::uint32_t shard = 0; shard < client_.shards(); ++shard) {
        testing::Values rows(ids[shard].size() * 3);
        for (float& each : rows)
          each = static_cast<float>(world_.dice.below(2000)) / 1000.0f - 1.0f;
        const auto codec = static_cast<wire::RowCodec>(world_.dice.below(wire::kRowCodecCount));
        if (!rows.empty())
          requests.push_back({shard, testing::push(kAdagrad, ids[shard], rows, {.codec = codec})});
      }
    }
    const CallPtr call = client_.submit(str("push ", world_.ledger.size() - 1), requests);
    world_.ledger.note_sent(call);
    under_way_.push_back({.kind = Kind::kPush, .call = call});
  }

  void pull() {
    Sent sent{.kind = Kind::kPull};
    std::vector<Addressed> requests;
    const auto ids = by_shard(some_ids(), client_.shards());
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard) {
      if (ids[shard].empty()) continue;
      requests.push_back({shard, testing::pull(kCounts, ids[shard])});
      sent.ids.push_back(ids[shard]);
      for (const std::uint64_t id : ids[shard]) {
        sent.least[id] = world_.ledger.own(client_, id).least;
        sent.before[id] = world_.rows_seen[{reader(), id}];
      }
    }
    sent.call = client_.submit("pull", requests);
    under_way_.push_back(std::move(sent));
  }

  void keep_up(const Upkeep& upkeep) {
    if (!upkeep.call) return;
    under_way_.push_back({.kind = Kind::kUpkeep, .call = upkeep.call, .rules = upkeep.rules});
  }

  void poison() {
    testing::Request broken = testing::pull(kCounts, {1, 2});
    broken.header.count = 7;
    under_way_.push_back({.kind = Kind::kPoison, .call = client_.submit("poison", {{0, broken}})});
  }

  void pull_dense() {
    Sent sent{.kind = Kind::kDense};
    sent.least_dense = world_.ledger.own_dense(client_);
    sent.dense_before = world_.dense_seen[reader()];
    sent.call = client_.submit_to_all("pull dense", testing::pull_dense(kDense));
    under_way_.push_back(std::move(sent));
  }

  // With a log over all its processes.
  std::uint64_t reader() const {
    return world_.scenario.has_log ? client_.number() : ~client_.process();
  }

  void judge_dense(const Sent& sent) {
    ++world_.dense_judged;
    const std::vector<float> most = world_.ledger.most_dense();
    std::vector<float> all;
    for (const auto& answer : sent.call->answers()) {
      const auto floats = testing::floats_of(answer.payload);
      all.insert(all.end(), floats.begin(), floats.end());
    }
    if (all.size() != most.size())
      return world_.complain(str(all.size(), " floats of a dense table of ", most.size()));
    std::vector<float>& seen = world_.dense_seen[reader()];
    seen.resize(all.size());
    for (std::size_t at = 0; at < all.size(); ++at) {
      const auto about = str("client ", client_.number(), " pulled ", all[at], " in float ", at,
                             " of the dense table, ");
      const float before = sent.dense_before.empty() ? 0 : sent.dense_before[at];
      if (!PsLedger::covers(all[at], before))
        world_.complain(str(about, "after it had seen ", before));
      if (!PsLedger::covers(most[at], all[at]))
        world_.complain(str(about, "where all pushes make ", most[at]));
      if (!has_lost_pushes_ && !PsLedger::covers(all[at], sent.least_dense[at]))
        world_.complain(str(about, "after it had pushed ", sent.least_dense[at]));
      if (PsLedger::covers(all[at], seen[at])) seen[at] = all[at];
    }
  }

  void judge(const Sent& sent) {
    const std::uint32_t columns = world_.scenario.clients;
    for (std::size_t part = 0; part < sent.ids.size(); ++part) {
      const auto& answer = sent.call->answers()[part];
      const auto pulled = testing::rows_of(answer.header, answer.payload, columns);
      for (std::size_t i = 0; i < sent.ids[part].size(); ++i) {
        const std::vector<float> row(
            pulled.rows.begin() + static_cast<std::ptrdiff_t>(i * columns),
            pulled.rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * columns));
        judge_row(sent, sent.ids[part][i], row, pulled.versions[i]);
      }
    }
  }

  void judge_row(const Sent& sent, std::uint64_t id, const std::vector<float>& row,
                 std::uint32_t version) {
    ++world_.rows_judged;
    const std::uint32_t self = client_.number();
    const auto about = str("client ", self, " pulled row ", id, ": ");
    SeenRow before = sent.before.at(id);
    before.counts.resize(row.size());
    SeenRow& seen = world_.rows_seen[{reader(), id}];
    seen.counts.resize(row.size());
    if (version < before.version)
      world_.complain(str(about, "version ", version, " after it had seen ", before.version));
    if (version == seen.version && row != seen.counts)
      world_.complain(str(about, "another value, and version ", version, " as before"));
    for (std::uint32_t column = 0; column < row.size(); ++column) {
      if (row[column] < before.counts[column])
        world_.complain(str(about, "client ", column, "'s count went back from ",
                            before.counts[column], " to ", row[column]));
      if (row[column] > world_.ledger.most(column, id))
        world_.complain(str(about, row[column], " of client ", column, ", which pushed ",
                            world_.ledger.most(column, id)));
    }
    const float least = has_lost_pushes_ ? 0 : sent.least.at(id);
    if (row[self] < least)
      world_.complain(str(about, row[self], " of its own, after it had pushed ", least));
    if (version >= seen.version) seen = {version, row};
  }

  PsClient& client_;
  PsWorld& world_;
  std::deque<Sent> under_way_;
  std::uint32_t steps_left_ = 0;
  bool has_begun_ = false;
  bool has_given_up_ = false;
  bool has_lost_pushes_ = false;
};

}  // namespace

std::unique_ptr<PsProgram> make_counting(PsClient& client, PsWorld& world) {
  return std::make_unique<Counting>(client, world);
}

}  // namespace gradring::sim
