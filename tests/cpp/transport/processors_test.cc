// How many processors the ranks of a host may use together.
#include "transport/joining/processors.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace gradring::transport::processors_test {
namespace {

wire::Member rank_on(const std::string& processors, std::uint64_t group = 1,
                     std::uint32_t percent = 0) {
  wire::Member member;
  member.host_key = "host";
  member.processors = processors;
  member.control_group = group;
  member.quota_percent = percent;
  return member;
}

int usable(std::vector<wire::Member> members) {
  return usable_processors(members, "host");
}

struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "groups-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  std::uint32_t quota(const std::string& own) const { return find(own).percent; }
  Quota find(const std::string& own) const { return find_quota(own, path.string()); }
  std::filesystem::path path;
};

TEST_CASE("ranks that are bound to a processor each may use all of these together") {
  CHECK(usable({rank_on("1"), rank_on("2"), rank_on("08")}) == 3);
  CHECK(usable({rank_on("3"), rank_on("3")}) == 2);
  CHECK(usable({rank_on("f1")}) == 5);
  std::string last_of_256(64, '0');
  last_of_256.back() = '8';
  CHECK(usable({rank_on(last_of_256)}) == 1);
}

TEST_CASE("ranks of other hosts do not count") {
  wire::Member other = rank_on("ff");
  other.host_key = "other";
  CHECK(usable({rank_on("1"), other}) == 1);
}

TEST_CASE("what a control group does not pay for cannot be used") {
  CHECK(usable({rank_on("ff", 1, 250), rank_on("ff", 1, 250)}) == 2);
  CHECK(usable({rank_on("ff", 1, 50)}) == 1);
  CHECK(usable({rank_on("3", 1, 900)}) == 2);
  // Two containers on one host: each pays for itself.
  CHECK(usable({rank_on("ff", 1, 100), rank_on("ff", 2, 150)}) == 2);
  CHECK(usable({rank_on("ff", 1, 100), rank_on("ff", 2)}) == 8);
}

TEST_CASE("where a rank does not say, or says what makes no sense, all that are online count") {
  const int online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  for (const std::string text : {"", "g", "1-2", "-1"}) {
    CAPTURE(text);
    CHECK(usable({rank_on(text), rank_on("f")}) == online);
  }
  CHECK(usable({rank_on(std::string(5000, 'f'))}) == online);
}

TEST_CASE("a process tells which processors it may run on") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CHECK(usable({rank_on(own_processors())}) == CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const std::string bound = own_processors();
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(usable({rank_on(bound)}) == 1);
}

TEST_CASE("a quota is that of the narrowest control group around a process") {
  const Folder folder;
  const std::string own = "0::/jobs/step\n";
  CHECK(folder.quota(own) == 0);
  folder.write("jobs/step/cpu.max", "max 100000\n");
  CHECK(folder.quota(own) == 0);
  folder.write("jobs/cpu.max", "150000 100000\n");
  CHECK(folder.quota(own) == 150);
  folder.write("jobs/step/cpu.max", "400000 100000\n");
  CHECK(folder.quota(own) == 150);
  folder.write("cpu.max", "50000 100000\n");  // As a container sees its own.
  CHECK(folder.quota("0::/\n") == 50);
  CHECK(folder.quota("") == 50);
}

TEST_CASE("ranks whose groups share the quota of one around them are paid for once") {
  const Folder folder;
  folder.write("jobs/cpu.max", "200000 100000\n");
  folder.write("jobs/a/cpu.max", "max 100000\n");
  folder.write("jobs/b/cpu.max", "400000 100000\n");
  CHECK(folder.find("0::/jobs/a\n").group == "/jobs");
  CHECK(folder.find("0::/jobs/b\n").group == "/jobs");
  folder.write("jobs/b/cpu.max", "50000 100000\n");
  CHECK(folder.find("0::/jobs/b\n").group == "/jobs/b");
}

TEST_CASE("containers that each see their own group only are paid for by each") {
  const Folder folder;
  folder.write("cpu/cpu.cfs_quota_us", "200000\n");
  folder.write("cpu/cpu.cfs_period_us", "100000\n");
  CHECK(folder.quota("4:cpu,cpuacct:/docker/a\n") == 200);
  CHECK(folder.find("4:cpu,cpuacct:/docker/a\n").group == "/docker/a");
  CHECK(folder.find("4:cpu,cpuacct:/docker/b\n").group == "/docker/b");
}

TEST_CASE("a quota of the first version of control groups counts too") {
  const Folder folder;
  folder.write("cpu/jobs/cpu.cfs_quota_us", "-1\n");
  folder.write("cpu/jobs/cpu.cfs_period_us", "100000\n");
  const std::string own = "5:memory:/elsewhere\n4:cpu,cpuacct:/jobs\n1:name=systemd:/x\n";
  CHECK(folder.quota(own) == 0);
  folder.write("cpu/jobs/cpu.cfs_quota_us", "200000\n");
  CHECK(folder.quota(own) == 200);
}

}  // namespace
}  // namespace gradring::transport::processors_test
