#include "collectives/plan/uneven.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradring::collectives {

namespace {

// Several streams at once, and pieces that wait for the slowest, cost more than an even ring.
constexpr double kWorthIt = 0.9;

// What each rank owns of a vector of 1, and how long the slowest link sends.
struct Division {
  std::vector<double> shares;
  double time = 0;
};

// An owner sends 1 + (n-2) of its share. All owners end together; who would own less than nothing
// owns nothing.
Division divide(std::span<const double> rates) {
  const auto n = static_cast<double>(rates.size());
  std::vector<bool> owns(rates.size(), true);
  Division found;
  while (true) {
    double owners = 0;
    double rate = 0;
    for (std::size_t rank = 0; rank < rates.size(); ++rank) {
      if (!owns[rank]) continue;
      owners += 1;
      rate += rates[rank];
    }
    found.time = (owners + n - 2) / rate;
    found.shares.assign(rates.size(), 0);
    bool is_sound = true;
    for (std::size_t rank = 0; rank < rates.size(); ++rank) {
      if (!owns[rank]) continue;
      found.shares[rank] = (rates[rank] * found.time - 1) / (n - 2);
      if (found.shares[rank] >= 0) continue;
      owns[rank] = false;
      is_sound = false;
    }
    if (is_sound) break;
  }
  for (std::size_t rank = 0; rank < rates.size(); ++rank)
    if (!owns[rank]) found.time = std::max(found.time, 1 / rates[rank]);
  return found;
}

}  // namespace

std::vector<std::uint64_t> uneven_shares(std::uint64_t count, std::span<const double> rates) {
  if (rates.size() < 3) return {};  // Two send each other everything, however it is cut.
  const auto n = static_cast<double>(rates.size());
  const Division found = divide(rates);
  const double even = 2 * (n - 1) / n / *std::min_element(rates.begin(), rates.end());
  if (found.time > kWorthIt * even) return {};
  const double whole = std::accumulate(found.shares.begin(), found.shares.end(), 0.0);
  std::vector<std::uint64_t> counts;
  double owned = 0;
  std::uint64_t begin = 0;
  for (std::size_t rank = 0; rank < rates.size(); ++rank) {
    owned += found.shares[rank];
    const double edge = std::floor(static_cast<double>(count) * (owned / whole));
    const bool is_last = rank + 1 == rates.size();
    const std::uint64_t end =
        is_last ? count : std::clamp(static_cast<std::uint64_t>(edge), begin, count);
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

}  // namespace gradring::collectives
