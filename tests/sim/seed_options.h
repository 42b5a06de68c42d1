// SeedOptions: which seeds a soak program plays, as its command line says it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

namespace gradring::sim {

struct SeedOptions {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1000;
  bool is_one = false;  // Only the first, line by line.
};

[[noreturn]] inline void explain(const char* program) {
  std::cerr << "usage: " << program << " [--seeds N] [--first S] | --seed S\n";
  std::exit(2);
}

// Ends the program where they make no sense.
inline SeedOptions parse_seeds(const char* program, int argc, char** argv) {
  SeedOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) explain(program);
    char* end = nullptr;
    const std::uint64_t value = std::strtoull(argv[i + 1], &end, 10);
    if (*end != '\0') explain(program);
    if (name == "--seeds") {
      options.seeds = value;
    } else if (name == "--first") {
      options.first = value;
    } else if (name == "--seed") {
      options.first = value;
      options.is_one = true;
    } else {
      explain(program);
    }
  }
  return options;
}

}  // namespace gradring::sim
