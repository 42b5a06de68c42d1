// The half of Simulation that holds what happens against the promises.
#include <algorithm>

#include "base/error.h"
#include "sim/collectives/simulation.h"

namespace gradring::sim {

// Once it was told that a rank left in good order.
bool Simulation::has_heard_goodbye(const Host& each, Rank rank) {
  const std::vector<wire::Lost>& gone = each.monitor->gone();
  return std::any_of(gone.begin(), gone.begin() + static_cast<std::ptrdiff_t>(each.gone_seen),
                     [&](const wire::Lost& lost) { return lost.rank == rank && lost.has_left; });
}

// Nobody who is alive and connected is ever given up.
void Simulation::check_gone(Rank rank) {
  Host& each = host(rank);
  const std::vector<wire::Lost>& gone = each.monitor->gone();
  for (; each.gone_seen < gone.size(); ++each.gone_seen) {
    const wire::Lost& lost = gone[each.gone_seen];
    if (blame_.is_impaired(rank) || blame_.may_be_split()) continue;
    const bool has_left = blame_.may_have_left(lost.rank) && !blame_.is_impaired(lost.rank);
    if (!lost.has_left && has_left && has_heard_goodbye(each, lost.rank))
      complain(rank, str("takes back that rank ", lost.rank, " has left: ", lost.text));
    const bool is_true =
        blame_.may_be_given_up(lost.rank) || (lost.has_left && blame_.may_have_left(lost.rank));
    if (!is_true)
      complain(rank,
               str("gives up rank ", lost.rank, ", to which nothing has happened: ", lost.text));
  }
}

// Every rank ends with all results right or with an error that names a real cause, in time.
void Simulation::judge(Rank rank) {
  Host& each = host(rank);
  each.was_judged = true;
  const Worker& worker = *each.worker;
  last_progress_ = network_.now();
  if (worker.state() == Worker::State::kDone) {
    if (scenario_.leaves_when_done || scenario_.shrinks) blame_.end_in_good_order(rank);
  }
  if (worker.state() != Worker::State::kFailed) return;
  if (scenario_.leaves_when_failed) blame_.leave(rank, network_.now());
  const Failure& failure = worker.failure();
  const std::string objection = blame_.objection(rank, failure);
  if (!objection.empty()) return complain(rank, str(objection, ": ", failure.text));
  if (failure.kind == ErrorKind::kTimedOut) check_calls(rank);
  if (failure.kind != ErrorKind::kPeerLost || blame_.is_impaired(rank)) return;
  const auto hit = blame_.first_hit(failure.rank);
  if (!hit) return;
  const Time knowable = std::max(*hit, worker.began());
  if (network_.now() > knowable + blame_.patience())
    complain(rank, str("learns of rank ", failure.rank, " ",
                       seconds_between(knowable, network_.now()), " s late"));
}

// Different calls that were long enough in the heartbeats of one operation are found there.
void Simulation::check_calls(Rank rank) {
  const Time shown = network_.now() - Millis{scenario_.heartbeat_timeout};
  const Worker* first = nullptr;
  for (Rank other = 0; other < scenario_.world_size; ++other) {
    const Worker* worker = host(other).worker.get();
    if (other == rank || worker == nullptr || blame_.is_impaired(other)) continue;
    if (!worker->waits_since(shown)) continue;
    if (first != nullptr && first->seq() == worker->seq() && first->call() != worker->call())
      complain(rank, str("timed out, though the heartbeats showed ",
                         describe(first->call(), first->seq()), " and ",
                         describe(worker->call(), worker->seq())));
    first = worker;
  }
}

// No rank hangs.
void Simulation::check_progress() {
  for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
    const Host& each = host(rank);
    if (!each.worker || each.worker->is_over() || !network_.process(rank).runs()) continue;
    const Time latest = std::max(each.worker->began(), last_progress_);
    const Millis most = scenario_.operation_timeout + blame_.patience() + Millis{20'000};
    if (network_.now() > latest + most)
      return complain(rank, str("hangs in operation ", each.worker->operation()));
  }
}

// The survivors agree on who is still there, and know of everybody who is not.
void Simulation::check_truth() {
  if (blame_.may_be_split()) return;
  for (Rank observer = 0; observer < scenario_.world_size; ++observer) {
    if (!network_.process(observer).runs() || blame_.is_impaired(observer)) continue;
    for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
      const bool is_alive = host(observer).monitor->membership().is_alive(rank);
      const bool has_ended = network_.process(rank).has_ended;
      if (is_alive && (has_ended || blame_.is_gone_for_good(rank)))
        complain(observer, str("still believes in rank ", rank, " at the end"));
      if (!is_alive && !has_ended && !blame_.is_impaired(rank))
        complain(observer, str("does not believe in rank ", rank, " at the end"));
      for (Rank other = 0; other < observer; ++other) {
        if (!network_.process(other).runs() || blame_.is_impaired(other)) continue;
        if (host(other).monitor->membership().is_alive(rank) != is_alive)
          complain(observer, str("and rank ", other, " do not agree on rank ", rank));
      }
    }
  }
  const std::vector<Rank>* agreed = nullptr;
  for (Rank rank = 0; rank < scenario_.world_size; ++rank) {
    if (!host(rank).worker || blame_.is_impaired(rank)) continue;
    const std::vector<Rank>& survivors = host(rank).worker->survivors();
    if (survivors.empty()) continue;
    if (agreed != nullptr && *agreed != survivors)
      complain(rank, "went on with other survivors than the rest");
    agreed = &survivors;
  }
}

void Simulation::complain(Rank rank, const std::string& text) {
  trace_.note(network_.now(), rank, str("BROKEN PROMISE: ", text));
  if (complaint_.empty())
    complaint_ = str("after ", seconds_between(Time{} + std::chrono::hours(1), network_.now()),
                     " s rank ", rank, " ", text);
}

}  // namespace gradring::sim
