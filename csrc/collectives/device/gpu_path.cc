#include "collectives/device/gpu_path.h"

#include <map>
#include <utility>

#include "base/error.h"

namespace gradring::collectives {
namespace {

std::string version_text(std::int32_t version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Why these ranks can be in no NCCL communicators, or nothing.
std::string obstacle_to_nccl(const std::vector<GpuFacts>& ranks) {
  std::map<std::pair<std::string, std::string>, std::size_t> owners;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuFacts& facts = ranks[rank];
    if (facts.device < 0) return str("rank ", rank, " has its memory on no GPU");
    const auto [owner, is_first] = owners.try_emplace({facts.host, facts.bus_id}, rank);
    if (!is_first)
      return str("ranks ", owner->second, " and ", rank, " share one GPU (", facts.bus_id, ")");
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].nccl_version == 0)
      return str("rank ", rank, " has no NCCL",
                 ranks[rank].nccl_trouble.empty() ? "" : ": " + ranks[rank].nccl_trouble);
  return "";
}

// Which ranks have different NCCLs, or nothing: of one host, or of all.
std::string difference(const std::vector<GpuFacts>& ranks, bool is_of_one_host) {
  std::map<std::string, std::size_t> firsts;  // By host.
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::size_t first =
        firsts.try_emplace(is_of_one_host ? ranks[rank].host : "", rank).first->second;
    if (ranks[rank].nccl_version != ranks[first].nccl_version)
      return str("rank ", first, " has NCCL ", version_text(ranks[first].nccl_version), ", rank ",
                 rank, " has ", version_text(ranks[rank].nccl_version));
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
  std::string to_any = obstacle_to_nccl(ranks);
  std::string to_one = to_any.empty() ? difference(ranks, false) : to_any;
  std::string to_hosts = to_any.empty() ? difference(ranks, true) : to_any;
  if (to_hosts.empty()) to_hosts = obstacle_to_hosts(ranks);
  if (wanted == GpuPath::kNccl || wanted == GpuPath::kNcclInHosts) {
    const std::string& why_not = wanted == GpuPath::kNccl ? to_one : to_hosts;
    if (!why_not.empty())
      throw DeviceError(str("'", name(wanted), "' was asked for, but ", why_not));
    return {wanted, "asked for"};
  }
  if (!to_any.empty()) return {GpuPath::kStaged, to_any};
  if (ranks.size() < 2) return {GpuPath::kStaged, "there is one rank only"};
  if (to_one.empty())
    return {GpuPath::kNccl,
            str("every rank has a GPU of its own and NCCL ", version_text(ranks[0].nccl_version))};
  if (to_hosts.empty())
    return {GpuPath::kNcclInHosts, str(to_one,
                                       ", but every host has one and the same number of "
                                       "ranks")};
  if (to_hosts == to_one) return {GpuPath::kStaged, to_one};
  return {GpuPath::kStaged, str(to_one, "; ", to_hosts)};
}

}  // namespace gradring::collectives
