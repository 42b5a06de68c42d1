#include "sim/collectives/network.h"

#include <algorithm>
#include <tuple>

#include "transport/links/striped_link.h"

namespace gradring::sim {

using transport::Link;
using transport::MemoryLink;
using transport::MemoryScript;
using transport::MemoryWire;
using transport::StripedLink;

Attempt* Network::connect(Rank from, Rank to, std::uint64_t communicator,
                          const MemoryScript& script, std::size_t streams) {
  Attempt& attempt = attempts_.emplace_back();
  attempt.from = from;
  attempt.to = to;
  attempt.communicator = communicator;
  attempt.arrives = after_a_delay();
  std::tie(attempt.near, attempt.far) = join_all(from, to, communicator, script, streams);
  // The kernel of a host that is there answers for a process that is not.
  if (process(to).has_ended && reach_each_other(to, from)) {
    attempt.state = Attempt::State::kRefused;
    attempt.answered = attempt.arrives;
  }
  return &attempt;
}

Attempt::State Network::answer(const Attempt& attempt) const {
  const bool has_come = attempt.state != Attempt::State::kWaiting && attempt.answered <= now();
  return has_come ? attempt.state : Attempt::State::kWaiting;
}

void Network::give_up(Attempt* attempt) {
  attempts_.remove_if([&](const Attempt& other) { return &other == attempt; });
}

std::vector<Attempt*> Network::arrived(Rank at) {
  std::vector<Attempt*> found;
  for (Attempt& attempt : attempts_) {
    const bool is_reachable = reach_each_other(at, attempt.from);
    if (attempt.to == at && attempt.state == Attempt::State::kWaiting && attempt.arrives <= now() &&
        is_reachable && !process(attempt.from).has_ended)
      found.push_back(&attempt);
  }
  return found;
}

std::unique_ptr<Link> Network::accept(Attempt& attempt) {
  attempt.state = Attempt::State::kConnected;
  attempt.answered = after_a_delay();
  return std::move(attempt.far);
}

std::pair<std::unique_ptr<MemoryLink>, std::unique_ptr<MemoryLink>> Network::join(
    Rank a, Rank b, std::uint64_t communicator, MemoryScript script) {
  script.seed = dice_.any();
  auto wire = std::make_shared<MemoryWire>(weather, script);
  wire->set_silent(!reach_each_other(a, b));
  cables_.push_back({a, b, communicator, wire});
  return {std::make_unique<MemoryLink>(wire, 0), std::make_unique<MemoryLink>(wire, 1)};
}

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> Network::join_all(
    Rank a, Rank b, std::uint64_t communicator, MemoryScript script, std::size_t streams) {
  std::vector<std::unique_ptr<Link>> near;
  std::vector<std::unique_ptr<Link>> far;
  for (std::size_t nth = 0; nth < streams; ++nth) {
    auto [one, other] = join(a, b, communicator, script);
    near.push_back(std::move(one));
    far.push_back(std::move(other));
    script.break_at_byte = MemoryScript{}.break_at_byte;
  }
  if (streams == 1) return {std::move(near.front()), std::move(far.front())};
  return {std::make_unique<StripedLink>(std::move(near)),
          std::make_unique<StripedLink>(std::move(far))};
}

void Network::end(Rank rank, bool is_killed) {
  process(rank).has_ended = true;
  for (Cable& cable : cables_) {
    if (cable.a != rank && cable.b != rank) continue;
    // The kernel resets a connection on which unread bytes wait.
    if (is_killed && dice_.percent(50)) cable.wire->break_off(true);
    cable.wire->close(cable.a == rank ? 0 : 1);
  }
  refuse_at_ended();
}

void Network::cut_off(Rank rank, int cuts) {
  process(rank).cuts += cuts;
  refresh();
}

void Network::cut_pair(Rank a, Rank b, int cuts) {
  pair_cuts_[std::minmax(a, b)] += cuts;
  refresh();
}

bool Network::reach_each_other(Rank a, Rank b) const {
  for (const Rank rank : {a, b})
    if (processes_[static_cast<std::size_t>(rank)].cuts > 0) return false;
  const auto pair = pair_cuts_.find(std::minmax(a, b));
  return pair == pair_cuts_.end() || pair->second == 0;
}

void Network::refresh() {
  for (Cable& cable : cables_) cable.wire->set_silent(!reach_each_other(cable.a, cable.b));
  refuse_at_ended();
}

void Network::refuse_at_ended() {
  for (Attempt& attempt : attempts_) {
    if (attempt.state != Attempt::State::kWaiting || !process(attempt.to).has_ended) continue;
    if (!reach_each_other(attempt.to, attempt.from)) continue;
    attempt.state = Attempt::State::kRefused;
    attempt.answered = after_a_delay();
  }
}

void Network::reset(Rank a, Rank b, std::uint64_t communicator) {
  for (Cable& cable : cables_)
    if (cable.joins(a, b) && cable.communicator == communicator) cable.wire->break_off(true);
}

bool Network::is_broken(Rank a, Rank b, std::uint64_t communicator) const {
  return std::any_of(cables_.begin(), cables_.end(), [&](const Cable& cable) {
    return cable.joins(a, b) && cable.communicator == communicator && cable.wire->was_broken();
  });
}

Time Network::next_event() const {
  const auto runs = [&](Rank rank) { return processes_[static_cast<std::size_t>(rank)].runs(); };
  Time next = Time::max();
  for (const Cable& cable : cables_) {
    if (runs(cable.a)) next = std::min(next, cable.wire->next_arrival(0));
    if (runs(cable.b)) next = std::min(next, cable.wire->next_arrival(1));
  }
  for (const Attempt& attempt : attempts_) {
    const bool is_waiting = attempt.state == Attempt::State::kWaiting;
    const Time when = is_waiting ? attempt.arrives : attempt.answered;
    if (runs(is_waiting ? attempt.to : attempt.from) && when > now()) next = std::min(next, when);
  }
  return next;
}

Time Network::after_a_delay() {
  return now() + dice_.between(weather.min_delay, weather.max_delay) + Micros{1};
}

}  // namespace gradring::sim
