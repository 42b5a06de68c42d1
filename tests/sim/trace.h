// Trace: everything that happens in a simulation, as one number; printed line by line on request.
// Equal hashes mean that two runs went alike, which is what makes a failing seed worth having.
#pragma once

#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/types.h"

namespace gradring::sim {

class Trace {
 public:
  explicit Trace(bool is_printed) : is_printed_(is_printed) {}

  void note(Time now, Rank rank, std::string_view what) {
    mix(static_cast<std::uint64_t>(now.time_since_epoch().count()));
    mix(static_cast<std::uint64_t>(rank));
    for (const char letter : what) mix(static_cast<unsigned char>(letter));
    if (!is_printed_) return;
    std::cout << seconds_between(Time{}, now) << " rank " << rank << ": " << what << '\n';
  }
  std::uint64_t hash() const { return hash_; }

 private:
  void mix(std::uint64_t word) { hash_ = (hash_ ^ word) * 1099511628211u; }

  bool is_printed_;
  std::uint64_t hash_ = 14695981039346656037u;
};

}  // namespace gradring::sim
