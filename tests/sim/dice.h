// Dice: the simulation's only source of chance. The same seed throws the same on every machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

namespace gradring::sim {

using Micros = std::chrono::microseconds;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::uint64_t any() { return random_(); }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool percent(std::uint64_t chance) { return below(100) < chance; }
  Micros between(Micros low, Micros high) {
    const auto span = static_cast<std::uint64_t>((high - low).count());
    return low + Micros{static_cast<std::int64_t>(below(span + 1))};
  }
  // From 1 us up to `most`, every order of magnitude alike.
  Micros any_magnitude(Micros most) {
    Micros top{1};
    while (top < most && percent(80)) top *= 4;
    return between(Micros{1}, std::min(top, most));
  }
  template <typename T>
  const T& one_of(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace gradring::sim
