#include "sim/scale/scale_report.h"

#include <algorithm>
#include <iomanip>

#include "base/json.h"
#include "base/text.h"
#include "sim/scale/start_up.h"

namespace gradring::sim {
namespace {

using collectives::Algorithm;

struct Row {
  ScaleCase what;
  bool is_allowed = false;  // It gives the order that the call would have.
  bool is_played = false;
  RankLoad load;
  double mean_sent_bytes = 0;
  std::uint64_t hops = 0;
  double us = 0;            // Connections are there.
  double first_us = 0;      // They are made on the way.
  double straggled_us = 0;  // One rank in a hundred four times slower, latencies that vary.
};

NetworkModel cold(NetworkModel model) {
  model.is_cold = true;
  return model;
}

NetworkModel straggling(NetworkModel model) {
  model.slow_share = 0.01;
  model.slow_factor = 4;
  model.jitter = 0.5;
  return model;
}

Row measure(const ScaleCase& c, bool is_allowed, const ScaleWishes& wishes) {
  Row row;
  row.what = c;
  row.is_allowed = is_allowed;
  row.load = sampled_load(c);
  const std::uint64_t actions = row.load.actions * static_cast<std::uint64_t>(c.ranks);
  if (actions > wishes.most_actions || actions * row.load.peers > wishes.most_looks) return row;
  const bool is_large = actions > wishes.most_actions / 2;
  if (is_large && !is_allowed) return row;
  row.is_played = true;
  const ScaleWorld world(c);
  row.load = world.most();
  row.mean_sent_bytes = world.mean_sent_bytes();
  row.hops = world.hops();
  row.us = world.play_us(wishes.model);
  if (is_large) return row;
  row.first_us = world.play_us(cold(wishes.model));
  row.straggled_us = world.play_us(straggling(wishes.model));
  return row;
}

// Every algorithm, also those whose order of additions the call would not have.
std::vector<Row> measure_all(ScaleCase c, const ScaleWishes& wishes) {
  using collectives::Order;
  std::vector<Row> rows;
  const collectives::Request usual = request_of(c, 0);
  const std::vector<Algorithm> allowed = algorithms_for(usual);
  for (const Order order : {usual.order, Order::kRing, Order::kTree}) {
    c.order = order;
    for (const Algorithm algorithm : algorithms_for(request_of(c, 0))) {
      const auto is_this = [&](const Row& row) { return row.what.algorithm == algorithm; };
      if (std::any_of(rows.begin(), rows.end(), is_this)) continue;
      c.algorithm = algorithm;
      const bool is_allowed = std::count(allowed.begin(), allowed.end(), algorithm) > 0;
      rows.push_back(measure(c, is_allowed, wishes));
    }
  }
  return rows;
}

// The time of `algorithm` over the best of those that were played; 0 if it was not.
double regret(const std::vector<Row>& rows, Algorithm algorithm, bool of_any_order) {
  double best = 0;
  double own = 0;
  for (const Row& row : rows) {
    if (!row.is_played) continue;
    if (row.what.algorithm == algorithm) own = row.us;
    if (!row.is_allowed && !of_any_order) continue;
    if (best == 0 || row.us < best) best = row.us;
  }
  return best == 0 ? 0 : own / best;
}

class Reporter {
 public:
  Reporter(const ScaleWishes& wishes, std::ostream& out) : wishes_(wishes), out_(out) {
    out_ << std::left << std::setw(15) << "op" << std::right << std::setw(6) << "ranks"
         << std::setw(10) << "bytes" << std::setw(10) << "algorithm" << std::setw(6) << "hops"
         << std::setw(7) << "bound" << std::setw(11) << "us" << std::setw(11) << "bound"
         << std::setw(11) << "first" << std::setw(11) << "stragglers" << std::setw(12)
         << "sent bytes" << std::setw(12) << "bound" << std::setw(9) << "messages" << std::setw(7)
         << "links" << std::setw(12) << "plan bytes" << std::setw(12) << "scratch" << "  \n";
  }

  void add(OpKind op, Rank ranks, std::uint64_t bytes) {
    ScaleCase c;
    c.op = op;
    c.ranks = ranks;
    c.bytes = op == OpKind::kBarrier ? 0 : bytes;
    const std::vector<Row> rows = measure_all(c, wishes_);
    const collectives::Request request = request_of(c, 0);
    const Algorithm chosen = choose(request, collectives::loopback_costs());
    const Algorithm tuned = choose(request, costs_of(wishes_.model));
    json_.new_line().open_object();
    json_.member("op", name(op)).member("ranks", ranks).member("bytes", c.bytes);
    const Bound bound = bound_of(c, wishes_.model);
    json_.member("bound_hops", bound.hops).member("bound_sent_bytes", bound.sent_bytes);
    json_.member("bound_us", bound.us);
    json_.member("chosen", name(chosen)).member("tuned", name(tuned));
    json_.member("regret", regret(rows, chosen, false));
    json_.member("tuned_regret", regret(rows, tuned, false));
    json_.member("regret_of_any_order", regret(rows, chosen, true));
    json_.key("algorithms").open_array();
    for (const Row& row : rows) {
      write(row);
      print(row, bound, row.what.algorithm == chosen, row.what.algorithm == tuned);
    }
    json_.close_array().close_object();
    out_ << "    chosen " << name(chosen) << " regret " << regret(rows, chosen, false)
         << ", any order " << regret(rows, chosen, true) << "; tuned " << name(tuned) << ' '
         << regret(rows, tuned, false) << '\n'
         << std::flush;
  }

  JsonWriter& json() { return json_; }

 private:
  void write(const Row& row) {
    json_.new_line().open_object();
    json_.member("algorithm", name(row.what.algorithm)).member("allowed", row.is_allowed);
    json_.member("played", row.is_played);
    json_.member("sent_bytes", row.load.sent_bytes).member("messages", row.load.sent_messages);
    json_.member("connections", row.load.peers).member("plan_bytes", row.load.plan_bytes);
    json_.member("scratch_bytes", row.load.scratch_bytes);
    if (row.is_played) {
      json_.member("mean_sent_bytes", row.mean_sent_bytes).member("hops", row.hops);
      json_.member("us", row.us);
    }
    if (row.first_us > 0) {
      json_.member("first_us", row.first_us).member("straggled_us", row.straggled_us);
    }
    json_.close_object();
  }

  void print(const Row& row, const Bound& bound, bool is_chosen, bool is_tuned) {
    out_ << std::left << std::setw(15) << name(row.what.op) << std::right << std::setw(6)
         << row.what.ranks << std::setw(10) << row.what.bytes << std::setw(10)
         << name(row.what.algorithm) << std::setw(6) << row.hops << std::setw(7) << bound.hops
         << std::fixed << std::setprecision(1) << std::setw(11) << row.us << std::setw(11)
         << bound.us << std::setw(11) << row.first_us << std::setw(11) << row.straggled_us
         << std::setw(12) << row.load.sent_bytes << std::setw(12) << bound.sent_bytes
         << std::setw(9) << row.load.sent_messages << std::setw(7) << row.load.peers
         << std::setw(12) << row.load.plan_bytes << std::setw(12) << row.load.scratch_bytes << "  "
         << (is_chosen ? "chosen " : "") << (is_tuned ? "tuned " : "")
         << (row.is_allowed ? "" : "other order ") << (row.is_played ? "" : "not played") << '\n';
  }

  const ScaleWishes& wishes_;
  std::ostream& out_;
  JsonWriter json_;
};

// Small worlds and large ones with data: whether the sums are right.
std::vector<std::string> check_results(const ScaleWishes& wishes, std::ostream& out) {
  std::vector<std::string> wrong;
  std::size_t checked = 0;
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                          OpKind::kBroadcast, OpKind::kReduce})
    for (const Rank ranks : wishes.ranks)
      for (const std::uint64_t count : {1, ranks + 3}) {
        ScaleCase c;
        c.op = op;
        c.ranks = ranks;
        c.bytes = count * sizeof(float);
        for (const Algorithm algorithm : algorithms_for(request_of(c, 0))) {
          c.algorithm = algorithm;
          const RankLoad load = sampled_load(c);
          constexpr std::uint64_t kMostActions = 2'000'000;
          if (load.actions * static_cast<std::uint64_t>(ranks) > kMostActions) continue;
          const std::string complaint = wrong_result(c, wishes.model);
          ++checked;
          if (!complaint.empty())
            wrong.push_back(str(name(op), '/', name(algorithm), " of ", ranks, ": ", complaint));
        }
      }
  out << checked << " cases played with data, " << wrong.size() << " wrong\n";
  return wrong;
}

void report_start_up(const ScaleWishes& wishes, JsonWriter& json, std::ostream& out) {
  json.key("start_up").open_array();
  for (const Rank ranks : wishes.ranks) {
    json.new_line().open_object().member("ranks", ranks);
    json.member("connections_of_rank_0", connections_after_joining(0, ranks));
    json.member("connections_of_others", connections_after_joining(1, ranks));
    json.member("member_table_bytes", member_table_bytes(ranks));
    json.key("phases").open_array();
    for (const Phase& phase : count_start_up(ranks)) {
      json.new_line().open_object().member("phase", phase.name);
      json.member("messages", phase.messages).member("bytes", phase.bytes);
      json.member("follower_messages", phase.follower_messages);
      json.member("follower_bytes", phase.follower_bytes).close_object();
      out << std::left << std::setw(26) << phase.name << std::right << std::setw(6) << ranks
          << " ranks: rank 0 sends " << phase.messages << " messages, " << phase.bytes
          << " bytes; each other " << phase.follower_messages << ", " << phase.follower_bytes
          << '\n';
    }
    json.close_array().close_object();
  }
  json.close_array();
}

}  // namespace

ScaleReport report_scale(const ScaleWishes& wishes, std::ostream& out) {
  Reporter reporter(wishes, out);
  JsonWriter& json = reporter.json();
  json.open_object();
  const NetworkModel& model = wishes.model;
  json.key("model").open_object();
  json.member("latency_us", model.latency_us).member("call_us", model.call_us);
  json.member("look_us", model.look_us).member("port_gb_s", model.port_gb_s);
  json.member("copy_gb_s", model.copy_gb_s).member("reduce_gb_s", model.reduce_gb_s);
  json.member("window", model.window).member("seed", model.seed).close_object();
  json.key("operations").open_array();
  for (int op = 0; op <= static_cast<int>(OpKind::kAllToAll); ++op) {
    const auto kind = static_cast<OpKind>(op);
    if (std::count(wishes.ops.begin(), wishes.ops.end(), name(kind)) == 0) continue;
    for (const Rank ranks : wishes.ranks)
      for (const std::uint64_t bytes : wishes.bytes) {
        reporter.add(kind, ranks, bytes);
        if (kind == OpKind::kBarrier) break;
      }
  }
  json.close_array();
  report_start_up(wishes, json, out);
  std::vector<std::string> wrong = check_results(wishes, out);
  json.member("wrong", static_cast<std::uint64_t>(wrong.size())).close_object();
  return {json.take(), std::move(wrong)};
}

}  // namespace gradring::sim
