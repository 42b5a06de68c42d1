// SplitMix64 (Steele, Lea and Flood, 2014): words of chance where many generators are made, or many
// words are needed. Any state is good from the first word on; the standard library's generators
// fill hundreds of words first, which took a tenth of all tests of plans. The same on every
// machine.
#pragma once

#include <cstdint>

namespace gradring::testing {

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t word = state_ += 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace gradring::testing
