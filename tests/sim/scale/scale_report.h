// What gradring_scale prints and keeps: every operation, world and size with every algorithm, and
// what the planner would have chosen. One thread.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "sim/scale/scale.h"

namespace gradring::sim {

struct ScaleWishes {
  NetworkModel model;
  std::vector<Rank> ranks{64, 96, 128, 256, 512, 1000, 1024, 2048, 4096};
  std::vector<std::uint64_t> bytes{4, 65536, 1 << 20, 16 << 20};
  std::vector<std::string> ops{"barrier",    "all_reduce", "reduce_scatter",
                               "all_gather", "broadcast",  "reduce"};
  // Of all ranks' plans together: above this a case is counted, not played. Above half of it, only
  // what the call could choose is played, and only with connections that are there.
  std::uint64_t most_actions = 7'000'000;
  // The same, of actions times the streams that a run looks through for each.
  std::uint64_t most_looks = 60'000'000;
};

struct ScaleReport {
  std::string json;
  std::vector<std::string> wrong;  // Results that were not right.
};

ScaleReport report_scale(const ScaleWishes& wishes, std::ostream& out);

}  // namespace gradring::sim
