// Drives a fuzz target without libFuzzer, so that every `make test` throws some damaged inputs at
// it under the sanitizers: messages_fuzz [runs [first seed]]. An input is a function of its seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "fuzz/target.h"

namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kMostDamages = 6;
constexpr std::uint32_t kMostNewBytes = 64;

// One change of the kinds that real damage and real attackers make.
void damage(Bytes& bytes, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return random() % std::max<std::size_t>(limit, 1); };
  const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1));
  switch (below(5)) {
    case 0:  // A flipped bit.
      if (place != bytes.end()) *place ^= static_cast<std::byte>(1u << below(8));
      return;
    case 1:  // A value.
      if (place != bytes.end()) *place = static_cast<std::byte>(below(256));
      return;
    case 2:  // Cut short.
      bytes.erase(place, bytes.end());
      return;
    case 3:  // Bytes in between.
      bytes.insert(place, 1 + below(kMostNewBytes), static_cast<std::byte>(below(256)));
      return;
    default: {  // A length that promises too much, or nearly nothing.
      constexpr std::uint32_t kLengths[] = {
          0, 1, 256, 4097, 1u << 14, (1u << 14) + 1, 0x7fffffff, 0xffffffff};
      const std::uint32_t length = kLengths[below(std::size(kLengths))];
      if (bytes.end() - place >= static_cast<std::ptrdiff_t>(sizeof length))
        std::memcpy(&*place, &length, sizeof length);
    }
  }
}

void feed(const Bytes& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned long runs = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100'000;
  const unsigned long first_seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const auto examples = gradring::fuzz::examples();
  for (const Bytes& example : examples) feed(example);
  for (unsigned long seed = first_seed; seed < first_seed + runs; ++seed) {
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    Bytes bytes = examples[random() % examples.size()];
    for (auto left = 1 + random() % kMostDamages; left > 0; --left) damage(bytes, random);
    feed(bytes);
  }
  std::printf("%lu damaged inputs from seed %lu on, every one refused or understood\n", runs,
              first_seed);
}
