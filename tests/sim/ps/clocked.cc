// Programs with clocks: bounded staleness, where a pull must show every living worker's updates but
// for the last few steps, and rounds, where it must show exactly the average of all before.
#include <algorithm>

#include "base/text.h"
#include "ps/tables/partition.h"
#include "sim/ps/world.h"

namespace gradring::sim {
namespace {

constexpr std::uint64_t kFirstMark = 10;  // Worker w's row, in the column of worker 0.

class Clocked : public PsProgram {
 public:
  Clocked(PsClient& client, PsWorld& world) : client_(client), world_(world) {}

  bool is_over() const override { return phase_ == Phase::kOver; }

  void step() override {
    if (phase_ == Phase::kBegin) return begin();
    if (phase_ == Phase::kOver || !is_answered()) return;
    for (const CallPtr& call : calls_)
      if (!world_.has_succeeded(client_, *call)) {
        judge_failure(call->failure());
        phase_ = Phase::kOver;
      }
    if (phase_ == Phase::kOver) return;
    go_on();
  }

 protected:
  enum class Phase : std::uint8_t { kBegin, kStart, kPull, kPush, kLeave, kOver };

  virtual bool is_round() const = 0;
  virtual double weight(std::uint64_t step) const = 0;
  virtual std::vector<Addressed> write_pull() = 0;
  virtual std::vector<Addressed> write_push() = 0;
  virtual void judge_pull(const ps::PlainCall& call) = 0;
  virtual void judge_failure(const Failure& failure) = 0;

  std::uint64_t now_at() const { return step_; }
  PsClient& client() const { return client_; }
  PsWorld& world() const { return world_; }
  std::uint32_t workers() const { return world_.scenario.clients; }

 private:
  bool is_answered() const {
    return std::all_of(calls_.begin(), calls_.end(),
                       [](const auto& call) { return call->is_done(); });
  }

  CallPtr say_clock(std::uint64_t to, double with_weight) {
    return client_.submit_to_all(
        str("clock ", to), testing::clock(kPsDomain, to, {workers(), is_round(), with_weight}));
  }

  void begin() {
    // A later process goes on where the one before it was.
    step_ = world_.clocks[client_.number()];
    calls_ = {
        client_.submit_to_all("make table", testing::make_table(counts_table(world_.scenario))),
        client_.submit_to_all("make table", testing::make_table(dense_table(world_.scenario))),
        say_clock(step_, 0)};
    phase_ = Phase::kStart;
  }

  void go_on() {
    switch (phase_) {
      case Phase::kPull:
        judge_pull(*calls_[0]);
        calls_ = {client_.submit(str("push of step ", step_), write_push()),
                  say_clock(step_ + 1, weight(step_))};
        phase_ = Phase::kPush;
        return;
      case Phase::kPush:
        ++step_;
        world_.clocks[client_.number()] = step_;
        [[fallthrough]];
      case Phase::kStart:
        if (step_ == world_.scenario.steps) {
          calls_ = {client_.submit_to_all("leave", testing::leave(kPsDomain))};
          phase_ = Phase::kLeave;
          return;
        }
        calls_ = {client_.submit(str("pull of step ", step_), write_pull(), true)};
        phase_ = Phase::kPull;
        return;
      default: phase_ = Phase::kOver;
    }
  }

  PsClient& client_;
  PsWorld& world_;
  Phase phase_ = Phase::kBegin;
  std::uint64_t step_ = 0;
  std::vector<CallPtr> calls_;
};

class Bounded final : public Clocked {
 public:
  using Clocked::Clocked;

 private:
  bool is_round() const override { return false; }
  double weight(std::uint64_t) const override { return 1; }
  std::uint64_t bound() const {
    return now_at() - std::min<std::uint64_t>(world_staleness(), now_at());
  }
  std::uint32_t world_staleness() const { return world().scenario.staleness; }
  wire::Gate gate() const {
    return {kPsDomain, bound(), static_cast<std::uint32_t>(world().scenario.gate_wait.count()),
            false};
  }

  std::vector<Addressed> write_pull() override {
    std::vector<std::uint64_t> ids;
    for (std::uint32_t worker = 0; worker < workers(); ++worker) ids.push_back(kFirstMark + worker);
    asked_ = by_shard(ids, client().shards());
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client().shards(); ++shard)
      if (!asked_[shard].empty())
        requests.push_back({shard, testing::pull(kCounts, asked_[shard], gate())});
    std::erase_if(asked_, [](const auto& ids_of_one) { return ids_of_one.empty(); });
    return requests;
  }

  std::vector<Addressed> write_push() override {
    const std::uint64_t id = kFirstMark + client().number();
    testing::Values row(workers(), 0);
    row[0] = 1;
    ++world().marks_pushed[client().number()];
    return {{ps::shard_of(id, client().shards()), testing::push(kCounts, {id}, row)}};
  }

  void judge_pull(const ps::PlainCall& call) override {
    for (std::size_t part = 0; part < asked_.size(); ++part) {
      const auto& answer = call.answers()[part];
      const auto pulled = testing::rows_of(answer.header, answer.payload, workers());
      for (std::size_t i = 0; i < asked_[part].size(); ++i) {
        const auto worker = static_cast<std::uint32_t>(asked_[part][i] - kFirstMark);
        const auto marks = static_cast<std::uint64_t>(pulled.rows[i * workers()]);
        const auto about = str("client ", client().number(), " at step ", now_at(), ", staleness ",
                               world_staleness(), ", sees ", marks, " updates of client ", worker);
        if (marks < bound() && !world().was_given_up(worker)) world().complain(about);
        if (marks > world().marks_pushed[worker])
          world().complain(str(about, ", which made ", world().marks_pushed[worker]));
      }
    }
  }

  void judge_failure(const Failure&) override {}

  std::vector<std::vector<std::uint64_t>> asked_;
};

// What a worker gives in a round, in eighths: sums are exact, so that only a wrong set or a wrong
// weight makes another value.
class Rounds final : public Clocked {
 public:
  using Clocked::Clocked;

 private:
  static constexpr std::uint64_t kRows = 6;  // The one behind them: every float of the dense table.

  bool is_round() const override { return true; }
  double weight(std::uint64_t step) const override { return weight_of(self(), step); }
  std::uint32_t self() const { return client().number(); }

  std::uint64_t draw(std::uint32_t worker, std::uint64_t step, std::uint64_t what) const {
    const std::uint64_t seed = world().scenario.seed;
    return ps::mix_id(ps::mix_id(seed * 64 + worker) ^ (step * 100 + what));
  }
  double weight_of(std::uint32_t worker, std::uint64_t step) const {
    return static_cast<double>(draw(worker, step, 99) % 4);
  }
  bool touches(std::uint32_t worker, std::uint64_t step, std::uint64_t row) const {
    return row == kRows || draw(worker, step, row) % 3 != 0;
  }
  float gradient(std::uint32_t worker, std::uint64_t step, std::uint64_t row) const {
    return static_cast<float>(draw(worker, step, 50 + row) % 64) / 8 - 4;
  }

  // The average, as docs/decisions/0002 orders additions: by rank, each product and sum in float32.
  float average(std::uint64_t step, std::uint64_t row) const {
    float sum = 0;
    bool is_first = true;
    double total = 0;
    const std::uint32_t count = workers();
    for (std::uint32_t worker = 0; worker < count; ++worker) {
      const double weight = weight_of(worker, step);
      total += weight;
      if (!touches(worker, step, row)) continue;
      const float product = static_cast<float>(weight) * gradient(worker, step, row);
      sum = is_first ? product : sum + product;
      is_first = false;
    }
    return total == 0 ? 0 : sum / static_cast<float>(total);
  }

  std::vector<Addressed> write_pull() override {
    const wire::Gate gate{kPsDomain, now_at(),
                          static_cast<std::uint32_t>(world().scenario.gate_wait.count()), true};
    std::vector<std::uint64_t> ids(kRows);
    for (std::uint64_t row = 0; row < kRows; ++row) ids[row] = row;
    asked_ = by_shard(ids, client().shards());
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client().shards(); ++shard)
      if (!asked_[shard].empty())
        requests.push_back({shard, testing::pull(kCounts, asked_[shard], gate)});
    std::erase_if(asked_, [](const auto& ids_of_one) { return ids_of_one.empty(); });
    for (std::uint32_t shard = 0; shard < client().shards(); ++shard)
      requests.push_back({shard, testing::pull_dense(kDense, gate)});
    return requests;
  }

  std::vector<Addressed> write_push() override {
    const wire::Round round{kPsDomain, now_at()};
    std::vector<std::uint64_t> ids;
    for (std::uint64_t row = 0; row < kRows; ++row)
      if (touches(self(), now_at(), row)) ids.push_back(row);
    const auto parts = by_shard(ids, client().shards());
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client().shards(); ++shard) {
      if (parts[shard].empty()) continue;
      testing::Values rows(parts[shard].size() * workers(), 0);
      for (std::size_t i = 0; i < parts[shard].size(); ++i)
        rows[i * workers()] = gradient(self(), now_at(), parts[shard][i]);
      requests.push_back({shard, testing::push(kCounts, parts[shard], rows, {.round = round})});
    }
    const testing::Values floats(kDenseFloats, gradient(self(), now_at(), kRows));
    for (std::uint32_t shard = 0; shard < client().shards(); ++shard)
      requests.push_back({shard, testing::push_dense(kDense, floats, {.round = round})});
    return requests;
  }

  void judge_pull(const ps::PlainCall& call) override {
    if (sums_.empty()) sums_.assign(kRows + 1, 0);
    for (; summed_ < now_at(); ++summed_)
      for (std::uint64_t row = 0; row <= kRows; ++row) sums_[row] += average(summed_, row);
    for (std::size_t part = 0; part < asked_.size(); ++part) {
      const auto& answer = call.answers()[part];
      const auto pulled = testing::rows_of(answer.header, answer.payload, workers());
      for (std::size_t i = 0; i < asked_[part].size(); ++i) {
        const float value = pulled.rows[i * workers()];
        const float wanted = sums_[asked_[part][i]];
        if (value != wanted)
          world().complain(str("client ", self(), " sees ", value, " in row ", asked_[part][i],
                               " after ", now_at(), " rounds, which make ", wanted));
      }
    }
    for (std::size_t part = asked_.size(); part < call.answers().size(); ++part) {
      ++world().dense_judged;
      if (testing::floats_of(call.answers()[part].payload) !=
          testing::Values(kDenseFloats, sums_[kRows]))
        world().complain(str("client ", self(), " sees another dense table after ", now_at(),
                             " rounds, which make ", sums_[kRows], " of every float"));
    }
  }

  void judge_failure(const Failure& failure) override {
    if (failure.kind != ErrorKind::kPeerLost || failure.rank < 0) return;
    if (!world().troubled.contains(static_cast<std::uint32_t>(failure.rank)))
      world().complain(str("client ", self(), " was told that client ", failure.rank,
                           " was lost, which is well"));
  }

  std::vector<std::vector<std::uint64_t>> asked_;
  std::vector<float> sums_;
  std::uint64_t summed_ = 0;
};

}  // namespace

std::unique_ptr<PsProgram> make_bounded(PsClient& client, PsWorld& world) {
  return std::make_unique<Bounded>(client, world);
}
std::unique_ptr<PsProgram> make_rounds(PsClient& client, PsWorld& world) {
  return std::make_unique<Rounds>(client, world);
}

}  // namespace gradring::sim
