// The GEO program: a replica of all rows; deltas go to the server, the sums come back with the
// answer or, where others changed them, when asked for.
#include <algorithm>

#include "base/text.h"
#include "sim/ps/world.h"

namespace gradring::sim {
namespace {

constexpr std::uint64_t kRows = 40;
constexpr std::uint64_t kExchangeEvery = 3;

class Geo final : public PsProgram {
 public:
  Geo(PsClient& client, PsWorld& world)
      : client_(client), world_(world), since_(client.shards(), 0) {}

  bool is_over() const override { return phase_ == Phase::kOver; }

  void step() override {
    if (phase_ == Phase::kBegin) {
      phase_ = Phase::kTable;
      call_ =
          client_.submit_to_all("make table", testing::make_table(counts_table(world_.scenario)));
      return;
    }
    if (phase_ == Phase::kWaiting) return wait_for_others();
    if (phase_ == Phase::kOver || !call_->is_done()) return;
    if (!world_.has_succeeded(client_, *call_)) {
      world_.still_going.erase(client_.number());
      phase_ = Phase::kOver;
      return;
    }
    if (phase_ == Phase::kTable) return pull_all();
    if (phase_ == Phase::kPull) take_rows(0);
    if (phase_ == Phase::kPush) take_rows(ps::kOutcomeBytes);
    if (phase_ == Phase::kExchange && take_changed()) return exchange();
    if (is_last_) {
      world_.replicas[client_.number()] = std::move(replica_);
      phase_ = Phase::kOver;
      return;
    }
    if (phase_ == Phase::kPush && ++steps_ % kExchangeEvery == 0) return exchange();
    if (steps_ >= world_.scenario.steps) {
      // The others may still push what this one has to see.
      world_.still_going.erase(client_.number());
      phase_ = Phase::kWaiting;
      return;
    }
    push();
  }

 private:
  enum class Phase : std::uint8_t { kBegin, kTable, kPull, kPush, kExchange, kWaiting, kOver };

  void wait_for_others() {
    if (!world_.still_going.empty()) return;
    is_last_ = true;
    exchange();
  }

  // What an earlier process of this number changed last, nobody else will be told of.
  void pull_all() {
    std::vector<std::uint64_t> ids(kRows);
    for (std::uint64_t id = 0; id < kRows; ++id) ids[id] = id;
    const auto parts = by_shard(ids, client_.shards());
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard) {
      if (parts[shard].empty()) continue;
      requests.push_back({shard, testing::pull(kCounts, parts[shard])});
      asked_.push_back(parts[shard]);
    }
    phase_ = Phase::kPull;
    call_ = client_.submit("pull all", requests);
  }

  void push() {
    std::set<std::uint64_t> ids;
    for (std::uint64_t left = 1 + world_.dice.below(10); left > 0; --left)
      ids.insert(world_.dice.below(kRows));
    const auto parts = by_shard({ids.begin(), ids.end()}, client_.shards());
    asked_.clear();
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard) {
      if (parts[shard].empty()) continue;
      testing::Values deltas(parts[shard].size() * world_.scenario.clients, 0);
      for (std::size_t i = 0; i < parts[shard].size(); ++i)
        deltas[i * world_.scenario.clients + client_.number()] = 1;
      requests.push_back(
          {shard, testing::push(kCounts, parts[shard], deltas, {.returns_rows = true})});
      asked_.push_back(parts[shard]);
    }
    for (const std::uint64_t id : ids) {
      ++given_[id];
      ++world_.given[{client_.number(), id}];
    }
    phase_ = Phase::kPush;
    call_ = client_.submit(str("deltas ", steps_), requests);
  }

  void exchange() {
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard)
      requests.push_back(
          {shard, testing::pull_changed(kCounts, since_[shard], 2 + world_.dice.below(20))});
    phase_ = Phase::kExchange;
    call_ = client_.submit("exchange", requests);
  }

  void take_rows(std::size_t rows_at) {
    for (std::size_t part = 0; part < asked_.size(); ++part) {
      const auto& payload = call_->answers()[part].payload;
      const auto rows = testing::floats_of(std::span(payload).subspan(rows_at));
      for (std::size_t i = 0; i < asked_[part].size(); ++i) take_row(asked_[part][i], rows, i);
    }
  }

  // Whether there is more.
  bool take_changed() {
    bool has_more = false;
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard) {
      const auto& answer = call_->answers()[shard];
      std::vector<std::uint64_t> ids(answer.header.count);
      if (!ids.empty()) std::memcpy(ids.data(), answer.payload.data(), ids.size() * 8);
      const auto rows = testing::floats_of(std::span(answer.payload).subspan(ids.size() * 8));
      for (std::size_t i = 0; i < ids.size(); ++i) take_row(ids[i], rows, i);
      since_[shard] = answer.header.a;
      has_more |= answer.header.b == 1;
    }
    return has_more;
  }

  void take_row(std::uint64_t id, const testing::Values& rows, std::size_t at) {
    const std::size_t columns = world_.scenario.clients;
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(at * columns);
    std::vector<float> row(begin, begin + static_cast<std::ptrdiff_t>(columns));
    const std::vector<float>& before = replica_[id];
    for (std::size_t column = 0; column < before.size(); ++column)
      if (row[column] < before[column])
        world_.complain(str("client ", client_.number(), "'s replica of row ", id,
                            " goes back from ", before[column], " to ", row[column]));
    // An earlier process of the same number may have given more, done or not.
    const float own = row[client_.number()];
    if (own < given_[id] || own > world_.given[{client_.number(), id}])
      world_.complain(str("client ", client_.number(), " gave ", given_[id], " to row ", id, ", ",
                          world_.given[{client_.number(), id}],
                          " with its earlier processes, and gets ", own));
    replica_[id] = std::move(row);
  }

  PsClient& client_;
  PsWorld& world_;
  Phase phase_ = Phase::kBegin;
  CallPtr call_;
  std::vector<std::uint64_t> since_;
  std::vector<std::vector<std::uint64_t>> asked_;
  std::map<std::uint64_t, std::vector<float>> replica_;
  std::map<std::uint64_t, float> given_;
  std::uint64_t steps_ = 0;
  bool is_last_ = false;
};

}  // namespace

std::unique_ptr<PsProgram> make_geo(PsClient& client, PsWorld& world) {
  return std::make_unique<Geo>(client, world);
}

}  // namespace gradring::sim
