#include "collectives/gpu_path.h"

#include <map>
#include <utility>

#include "base/error.h"

namespace gradring::collectives {
namespace {

std::string version_text(std::int32_t version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Why these ranks cannot all be in NCCL communicators, or nothing.
std::string obstacle_to_nccl(const std::vector<GpuFacts>& ranks) {
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuFacts& facts = ranks[rank];
    if (facts.device < 0) return str("rank ", rank, " has its memory on no GPU");
    const auto [owner, is_first] = owners.try_emplace({facts.host, facts.bus_id}, rank);
    if (!is_first)
      return str("ranks ", owner->second, " and ", rank, " share one GPU (", facts.bus_id, ")");
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuFacts& facts = ranks[rank];
    if (facts.nccl_version == 0)
      return str("rank ", rank, " has no NCCL",
                 facts.nccl_trouble.empty() ? "" : ": " + facts.nccl_trouble);
    if (facts.nccl_version != ranks[0].nccl_version)
      return str("rank 0 has NCCL ", version_text(ranks[0].nccl_version), ", rank ", rank, " has ",
                 version_text(facts.nccl_version));
  }
  return "";
}

// Why ranks do not fall into hosts of several ranks each, as many on every host, or nothing.
std::string obstacle_to_hosts(const std::vector<GpuFacts>& ranks) {
  std::map<std::string, std::size_t> sizes;
  for (const GpuFacts& facts : ranks) ++sizes[facts.host];
  if (sizes.size() < 2) return "all ranks are on one host";
  const std::size_t size = sizes.begin()->second;
  for (const auto& [host, count] : sizes) {
    if (count != size) return "hosts have different numbers of ranks";
  }
  return size < 2 ? "every host has one rank only" : "";
}

}  // namespace

std::string_view name(GpuPath path) {
  switch (path) {
    case GpuPath::kAuto: return "auto";
    case GpuPath::kNccl: return "nccl";
    case GpuPath::kStaged: return "staged";
    case GpuPath::kNcclInHosts: return "nccl_in_hosts";
  }
  return "?";
}

GpuChoice choose_gpu_path(const std::vector<GpuFacts>& ranks, GpuPath wanted) {
  if (wanted == GpuPath::kStaged) return {GpuPath::kStaged, "asked for"};
  const std::string obstacle = obstacle_to_nccl(ranks);
  if (wanted == GpuPath::kNccl || wanted == GpuPath::kNcclInHosts) {
    std::string why_not = obstacle;
    if (why_not.empty() && wanted == GpuPath::kNcclInHosts) why_not = obstacle_to_hosts(ranks);
    if (!why_not.empty())
      throw DeviceError(str("'", name(wanted), "' was asked for, but ", why_not));
    return {wanted, "asked for"};
  }
  if (!obstacle.empty()) return {GpuPath::kStaged, obstacle};
  if (ranks.size() < 2) return {GpuPath::kStaged, "there is one rank only"};
  return {GpuPath::kNccl,
          str("every rank has a GPU of its own and NCCL ", version_text(ranks[0].nccl_version))};
}

}  // namespace gradring::collectives
