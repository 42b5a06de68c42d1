#include "transport/joining/processors.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/error.h"

namespace gradring::transport {
namespace {

constexpr std::size_t kMost = 16384;  // More than any kernel is built for.
constexpr std::string_view kHexadecimal = "0123456789abcdef";

using Set = std::vector<bool>;  // By number.

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Where in the hierarchy of control groups this process is: version 2 has one, version 1 one for
// each controller.
std::string group_of(const std::string& own) {
  std::istringstream lines(own);
  std::string path;
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = str(",", line.substr(first + 1, second - first - 1), ",");
    if (controllers.find(",cpu,") != std::string::npos) return line.substr(second + 1);
    if (controllers == ",,") path = line.substr(second + 1);
  }
  return path;
}

std::optional<double> quota_in(const std::string& folder) {
  double quota = 0;
  double period = 0;
  if (std::ifstream(folder + "/cpu.max") >> quota >> period && period > 0) return quota / period;
  return {};
}

std::optional<double> old_quota_in(const std::string& folder) {
  double quota = 0;
  double period = 0;
  std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;  // -1: none.
  std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  if (quota > 0 && period > 0) return quota / period;
  return {};
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

// False where it makes no sense: another rank wrote it.
bool add(const std::string& digits, Set& set) {
  if (digits.empty() || digits.size() > kMost / 4) return false;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const auto value = kHexadecimal.find(digits[i]);
    if (value == std::string_view::npos) return false;
    for (std::size_t bit = 0; bit < 4; ++bit)
      if ((value >> bit & 1) != 0) set[4 * i + bit] = true;
  }
  return true;
}

int online() {
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

std::string own_processors() {
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMost),
                                                             [](cpu_set_t* s) { CPU_FREE(s); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kMost);
  if (!set || ::sched_getaffinity(0, bytes, set.get()) != 0) return "";
  std::string digits;
  for (std::size_t one = 0; one < kMost; one += 4) {
    std::size_t value = 0;
    for (std::size_t bit = 0; bit < 4; ++bit)
      if (CPU_ISSET_S(one + bit, bytes, set.get())) value |= std::size_t{1} << bit;
    digits += kHexadecimal[value];
  }
  return digits.substr(0, digits.find_last_not_of('0') + 1);
}

Quota find_quota(const std::string& own, const std::string& groups) {
  const std::string whole = group_of(own);
  std::optional<double> least;
  std::size_t least_at = 0;
  for (std::size_t length = whole.size(); length != std::string::npos;) {
    const std::string path = whole.substr(0, length);
    for (const auto& found : {quota_in(groups + path), old_quota_in(groups + "/cpu" + path)}) {
      if (!found || (least && *found >= *least)) continue;
      least = found;
      least_at = length;
    }
    length = path.rfind('/');
  }
  if (!least) return {};
  const double percent = std::clamp(*least * 100, 1.0, 100.0 * static_cast<double>(kMost));
  // Where a container of version 1 sees its own group in place of all, that is the one.
  const bool is_seen = exists(groups + whole) || exists(groups + "/cpu" + whole);
  return {static_cast<std::uint32_t>(percent), is_seen ? whole.substr(0, least_at) : whole};
}

void describe_processors(wire::Member& self) {
  const Quota quota = find_quota(read_all("/proc/self/cgroup"), "/sys/fs/cgroup");
  struct stat space{};
  ::stat("/proc/self/ns/cgroup", &space);  // Containers may all call theirs "/".
  self.processors = own_processors();
  self.control_group = std::hash<std::string>{}(str(space.st_ino, quota.group));
  self.quota_percent = quota.percent;
}

int usable_processors(const std::vector<wire::Member>& members, const std::string& host_key) {
  Set set(kMost);
  std::map<std::uint64_t, std::uint32_t> quotas;
  bool is_limited = true;
  for (const wire::Member& member : members) {
    if (member.host_key != host_key) continue;
    if (!add(member.processors, set)) return online();
    is_limited = is_limited && member.quota_percent > 0;
    quotas[member.control_group] = member.quota_percent;
  }
  const auto allowed = static_cast<int>(std::count(set.begin(), set.end(), true));
  if (!is_limited) return std::max(1, allowed);
  std::uint64_t percent = 0;
  for (const auto& [group, quota] : quotas) percent += quota;
  return std::max(1, static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(allowed),
                                                              percent / 100)));
}

}  // namespace gradring::transport
