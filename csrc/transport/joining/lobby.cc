#include "transport/joining/lobby.h"

#include <algorithm>
#include <iterator>

#include "base/config.h"
#include "transport/links/socket.h"

namespace gradring::transport {

void Lobby::enter(const void* opener, std::function<void()> wake) {
  state_.with([&](State& state) { state.openers[opener] = std::move(wake); });
}

void Lobby::leave(const void* opener, Fd listener) {
  state_.with([&](State& state) {
    state.openers.erase(opener);
    if (listener) state.listener = std::move(listener);
    if (state.openers.empty()) {
      state.listener.reset();
      state.newcomers.clear();
    }
    for (const auto& [other, wake] : state.openers) wake();
  });
}

Fd Lobby::take_listener() {
  return state_.with([](State& state) { return std::move(state.listener); });
}

bool Lobby::has_room() {
  return state_.with([](State& state) {
    if (state.newcomers.size() >= limits::kNewcomers) forget_gone(state);
    return state.newcomers.size() < limits::kNewcomers;
  });
}

void Lobby::take_in(Arrival newcomer) {
  state_.with([&](State& state) { state.newcomers.push_back(std::move(newcomer)); });
}

std::size_t Lobby::count() {
  return state_.with([](State& state) {
    forget_gone(state);
    return state.newcomers.size();
  });
}

std::vector<Arrival> Lobby::take(std::size_t most) {
  return state_.with([&](State& state) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(most, state.newcomers.size()));
    std::vector<Arrival> taken(std::move_iterator(state.newcomers.begin()),
                               std::move_iterator(state.newcomers.begin() + count));
    state.newcomers.erase(state.newcomers.begin(), state.newcomers.begin() + count);
    return taken;
  });
}

void Lobby::put_back(std::vector<Arrival> newcomers) {
  state_.with([&](State& state) {
    if (state.openers.empty()) return;
    state.newcomers.insert(state.newcomers.begin(), std::move_iterator(newcomers.begin()),
                           std::move_iterator(newcomers.end()));
  });
}

void Lobby::forget_gone(State& state) {
  std::erase_if(state.newcomers,
                [](const Arrival& newcomer) { return has_hung_up(newcomer.connection.get()); });
}

}  // namespace gradring::transport
