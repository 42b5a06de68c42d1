#include "transport/membership/group.h"

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace gradring::transport {

std::uint64_t derive_id(std::uint64_t parent, std::uint64_t nth, std::uint64_t salt) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a.
  for (const std::uint64_t word : {parent, nth, salt})
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ ((word >> (8 * byte)) & 0xff)) * 1099511628211u;
  return hash;
}

std::uint64_t hash_of_members(const std::vector<Rank>& members) {
  std::uint64_t hash = members.size();
  for (const Rank member : members) hash = derive_id(hash, static_cast<std::uint64_t>(member), 0);
  return hash;
}

bool Group::has_member(Rank world_rank) const {
  return std::find(members.begin(), members.end(), world_rank) != members.end();
}

void Group::note_theft(Time now) {
  constexpr Clock::duration kShortest = std::chrono::milliseconds(1);
  constexpr Clock::duration kLongest = std::chrono::milliseconds(64);
  const Clock::duration last{sleep_time_.load(std::memory_order_relaxed)};
  const Time woke{Clock::duration{last_sleep_until_.load(std::memory_order_relaxed)}};
  // With fewer between them than this, sleeps cost less than thefts: an operation that sleeps takes
  // some 10 us longer, a theft mostly 3 ms.
  constexpr std::uint32_t kFewYields = 256;
  const std::uint32_t yields = yields_.exchange(0, std::memory_order_relaxed);
  const bool is_back_soon = now - woke < 4 * last && yields < kFewYields;
  const auto next = is_back_soon ? std::min(2 * last, kLongest) : kShortest;
  sleep_time_.store(next.count(), std::memory_order_relaxed);
  last_sleep_until_.store((now + next).time_since_epoch().count(), std::memory_order_relaxed);
  sleep_until_.store((now + next).time_since_epoch().count(), std::memory_order_relaxed);
}

void Group::count_call(bool has_waited) {
  constexpr int kCallsOfOneAhead = 8;
  const int calls = has_waited ? 0 : calls_without_wait_.load(std::memory_order_relaxed) + 1;
  calls_without_wait_.store(calls % kCallsOfOneAhead, std::memory_order_relaxed);
  if (calls == kCallsOfOneAhead) sleep_until_.store(0, std::memory_order_relaxed);
}

void Group::fail(const Failure& failure) {
  const auto tell = state_.with([&](State& state) -> std::function<void(const Failure&)> {
    if (state.failure) return nullptr;
    state.failure = failure;
    return std::exchange(state.tell, nullptr);
  });
  is_failed_.store(true, std::memory_order_release);
  wake();
  if (tell) tell(failure);
}

void Group::on_failure(std::function<void(const Failure&)> tell) {
  const Failure failure = state_.with([&](State& state) {
    if (!state.failure) state.tell = tell;
    return state.failure;
  });
  if (failure) tell(failure);
}

Failure Group::failure() const {
  return state_.with([](const State& state) { return state.failure; });
}

void Group::mark_left(Rank world_rank, const std::string& text) {
  state_.with([&](State& state) { state.leavers.emplace(world_rank, text); });
  has_leavers_.store(true, std::memory_order_release);
  wake();
}

std::optional<std::string> Group::left(Rank world_rank) const {
  if (!has_leavers()) return std::nullopt;
  return state_.with([&](const State& state) -> std::optional<std::string> {
    const auto found = state.leavers.find(world_rank);
    if (found == state.leavers.end()) return std::nullopt;
    return found->second;
  });
}

bool Group::deliver(Arrival arrival) {
  if (arrival.intro.members_hash != members_hash) return false;
  state_.with([&](State& state) {
    // One link of a kind from each member is all that can be waiting.
    if (state.arrivals.size() <= 4 * members.size() * limits::kStreams)
      state.arrivals.push_back(std::move(arrival));
  });
  wake();
  return true;
}

void Group::turn_away_arrivals() {
  state_.with([](State& state) { state.arrivals.clear(); });
}

std::vector<Arrival> Group::take(Purpose purpose, std::uint8_t lane, Rank from, std::size_t count) {
  const auto is_wanted = [&](const Arrival& arrival) {
    return arrival.intro.purpose == purpose && arrival.intro.lane == lane &&
           arrival.intro.from == from;
  };
  return state_.with([&](State& state) {
    std::vector<Arrival> taken;
    const auto come = std::ranges::count_if(state.arrivals, is_wanted);
    if (static_cast<std::size_t>(come) < count) return taken;
    for (auto arrival = state.arrivals.begin(); taken.size() < count;) {
      if (!is_wanted(*arrival)) {
        ++arrival;
        continue;
      }
      taken.push_back(std::move(*arrival));
      arrival = state.arrivals.erase(arrival);
    }
    return taken;
  });
}

void Group::publish_call(const Call& call, std::uint64_t seq) {
  std::vector<Call> before;
  for (std::uint64_t back = 1; back <= kCallsTold && back < seq; ++back) {
    const Finished& last = finished_[(seq - back) % finished_.size()];
    if (last.seq != seq - back) break;
    before.push_back(last.call);
  }
  state_.with([&](State& state) { state.call = {id, seq, true, call, 0, {}, std::move(before)}; });
}

void Group::end_call() {
  state_.with([&](State& state) { state.call.in_progress = false; });
}

wire::CallState Group::call() const {
  return state_.with([&](const State& state) {
    wire::CallState call = state.call;
    call.communicator = id;
    call.members_hash = members_hash;
    call.made_by = made_by;
    if (call.in_progress) return call;
    // Those that did not wait for long were not published.
    const std::uint64_t last = seq_.load(std::memory_order_relaxed);
    if (call.seq != last) call.call = {};
    call.seq = last;
    return call;
  });
}

void Group::note_shrink_awaits(wire::ShrinkWait wait) {
  state_.with([&](State& state) { state.shrink_awaits = std::move(wait); });
}

wire::ShrinkWait Group::shrink_awaits() const {
  return state_.with([](const State& state) { return state.shrink_awaits; });
}

void Group::settle_shrink(std::vector<Rank> survivors) {
  state_.with([&](State& state) { state.survivors = std::move(survivors); });
  wake();
}

std::optional<std::vector<Rank>> Group::survivors() const {
  return state_.with([](const State& state) { return state.survivors; });
}

void Group::wake() {
  // Full means that a wake-up is pending already.
  ::eventfd_write(wake_.get(), 1);
}

void Group::clear_wake() {
  eventfd_t count = 0;
  ::eventfd_read(wake_.get(), &count);
}

}  // namespace gradring::transport
