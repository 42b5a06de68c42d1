// The way that GPU collectives take follows from what the ranks have, and says why.
#include "collectives/device/gpu_path.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace gradring::collectives::gpu_path_test {
namespace {

std::vector<GpuFacts> ranks_on(const std::vector<std::string>& hosts) {
  std::vector<GpuFacts> ranks;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    ranks.push_back({0, hosts[i], "bus " + std::to_string(i), 22809, ""});
  return ranks;
}

GpuPath path_of(const std::vector<GpuFacts>& ranks, const std::string& reason) {
  const GpuChoice choice = choose_gpu_path(ranks);
  CAPTURE(choice.reason);
  CHECK(choice.reason == reason);
  return choice.path;
}

TEST_CASE("NCCL is taken where every rank has a GPU and the same NCCL of its own") {
  CHECK(path_of(ranks_on({"a", "a", "b"}), "every rank has a GPU of its own and NCCL 2.28.9") ==
        GpuPath::kNccl);
}

TEST_CASE("GPU collectives are staged where one rank stands in NCCL's way, and name it") {
  auto ranks = ranks_on({"a", "a", "b"});
  ranks[1].bus_id = ranks[0].bus_id;
  CHECK(path_of(ranks, "ranks 0 and 1 share one GPU (bus 0)") == GpuPath::kStaged);
  ranks[1].host = "c";  // The same place of another host.
  CHECK(choose_gpu_path(ranks).path == GpuPath::kNccl);

  ranks = ranks_on({"a", "a", "b"});
  ranks[2].nccl_version = 0;
  ranks[2].nccl_trouble = "libnccl.so.2 was not found";
  CHECK(path_of(ranks, "rank 2 has no NCCL: libnccl.so.2 was not found") == GpuPath::kStaged);
  ranks[2].nccl_version = 23207;
  CHECK(path_of(ranks,
                "rank 0 has NCCL 2.28.9, rank 2 has 2.32.7; hosts have different numbers of "
                "ranks") == GpuPath::kStaged);
  ranks[1].nccl_version = 23207;
  CHECK(path_of(ranks, "rank 0 has NCCL 2.28.9, rank 1 has 2.32.7") == GpuPath::kStaged);
  ranks[2].device = -1;
  CHECK(path_of(ranks, "rank 2 has its memory on no GPU") == GpuPath::kStaged);
  CHECK(path_of(ranks_on({"a"}), "there is one rank only") == GpuPath::kStaged);
}

TEST_CASE("NCCL stays inside the hosts where theirs differ, if as many ranks are on each") {
  auto ranks = ranks_on({"a", "b", "a", "b"});
  ranks[1].nccl_version = ranks[3].nccl_version = 23207;
  CHECK(path_of(ranks,
                "rank 0 has NCCL 2.28.9, rank 1 has 2.32.7, but every host has one and the "
                "same number of ranks") == GpuPath::kNcclInHosts);
  CHECK_THROWS_WITH_AS(choose_gpu_path(ranks, GpuPath::kNccl),
                       "'nccl' was asked for, but rank 0 has NCCL 2.28.9, rank 1 has 2.32.7",
                       DeviceError);
  ranks.pop_back();
  ranks.pop_back();
  CHECK(path_of(ranks, "rank 0 has NCCL 2.28.9, rank 1 has 2.32.7; every host has one rank only") ==
        GpuPath::kStaged);
}

TEST_CASE("a way that was asked for is taken, or refused with the reason") {
  auto ranks = ranks_on({"a", "a", "b", "b"});
  for (const GpuPath wanted : {GpuPath::kNccl, GpuPath::kStaged, GpuPath::kNcclInHosts})
    CHECK(choose_gpu_path(ranks, wanted).path == wanted);
  ranks[3].host = "a";
  CHECK_THROWS_WITH_AS(choose_gpu_path(ranks, GpuPath::kNcclInHosts),
                       "'nccl_in_hosts' was asked for, but hosts have different numbers of ranks",
                       DeviceError);
  ranks[3].nccl_version = 0;
  CHECK_THROWS_WITH_AS(choose_gpu_path(ranks, GpuPath::kNccl),
                       "'nccl' was asked for, but rank 3 has no NCCL", DeviceError);
  CHECK(choose_gpu_path(ranks, GpuPath::kStaged).path == GpuPath::kStaged);
  CHECK_THROWS_AS(choose_gpu_path(ranks_on({"a", "b"}), GpuPath::kNcclInHosts), DeviceError);
}

}  // namespace
}  // namespace gradring::collectives::gpu_path_test
