// gradring_scale: plays collectives of 64 to 4,096 ranks over a simulated network, and counts what
// start-up costs. Prints tables; --json FILE keeps everything. The same arguments give the same
// bytes, but for --real, which starts that many real ranks. docs/scale.md says what the columns
// mean.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "sim/scale/real_start.h"
#include "sim/scale/scale_report.h"

namespace {

using gradring::sim::ScaleWishes;

[[noreturn]] void explain() {
  std::cerr << "usage: gradring_scale [--ranks 64,1024] [--bytes 4,1048576] [--ops all_reduce]\n"
               "         [--latency US] [--gb-s RATE] [--seed S] [--most-actions N] [--json FILE]\n"
               "       gradring_scale --real RANKS\n";
  std::exit(2);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

double number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || value < 0) explain();
  return value;
}

ScaleWishes parse(int argc, char** argv, std::string& json) {
  ScaleWishes wishes;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) explain();
    const std::string value = argv[i + 1];
    if (name == "--ranks") {
      wishes.ranks.clear();
      for (const auto& part : split(value))
        wishes.ranks.push_back(static_cast<gradring::Rank>(number(part)));
    } else if (name == "--bytes") {
      wishes.bytes.clear();
      for (const auto& part : split(value))
        wishes.bytes.push_back(static_cast<std::uint64_t>(number(part)));
    } else if (name == "--ops") {
      wishes.ops = split(value);
    } else if (name == "--latency") {
      wishes.model.latency_us = number(value);
    } else if (name == "--gb-s") {
      wishes.model.port_gb_s = number(value);
    } else if (name == "--seed") {
      wishes.model.seed = static_cast<std::uint64_t>(number(value));
    } else if (name == "--most-actions") {
      wishes.most_actions = static_cast<std::uint64_t>(number(value));
    } else if (name == "--json") {
      json = value;
    } else {
      explain();
    }
  }
  return wishes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--real") {
    gradring::sim::start_for_real(static_cast<gradring::Rank>(number(argv[2])), std::cout);
    return 0;
  }
  std::string json;
  const ScaleWishes wishes = parse(argc, argv, json);
  const gradring::sim::ScaleReport report = report_scale(wishes, std::cout);
  if (!json.empty()) std::ofstream(json) << report.json;
  for (const std::string& wrong : report.wrong) std::cerr << "WRONG: " << wrong << '\n';
  return report.wrong.empty() ? 0 : 1;
}
