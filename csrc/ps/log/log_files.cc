#include "ps/log/log_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "ps/log/log.h"

namespace gradring::ps {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void blame_disk(const std::string& path, const std::string& what,
                             const std::error_code& error) {
  throw DeviceError(str("log: ", path, " ", what, ": ", error.message(),
                        "; see that its disk is in order, and that this server's user may read ",
                        "and write there, and start the server again"));
}

}  // namespace

void make_folders(const std::string& folder, bool syncs, std::error_code& error) {
  std::vector<fs::path> parents;  // Of those that are not there yet.
  const fs::path whole = fs::absolute(folder, error);
  if (error) return;
  for (fs::path at = whole; !fs::exists(at, error) && at.has_relative_path(); at = at.parent_path())
    parents.push_back(at.parent_path());
  error.clear();
  fs::create_directories(whole, error);
  if (error || !syncs) return;
  for (const fs::path& parent : parents) sync_folder(parent.string());
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) blame_disk(folder, "cannot be read", error);
  return names;
}

std::vector<std::uint64_t> numbers_in(const std::string& folder, const std::string& prefix,
                                      const std::string& suffix) {
  std::vector<std::uint64_t> found;
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    const char* const begin = name.data() + prefix.size();
    const char* const end = name.data() + name.size() - suffix.size();
    std::uint64_t number = 0;
    if (std::from_chars(begin, end, number).ptr == end && begin < end) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) blame_disk(path, "cannot be removed", error);
}

}  // namespace gradring::ps
