#include "ps/log/log_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "ps/log/log.h"
#include "transport/links/fd.h"

namespace gradring::ps {
namespace {

namespace fs = std::filesystem;

constexpr char kNewest[] = "newest-";

std::string newest_path(const std::string& folder, std::uint64_t segment) {
  return numbered(str(folder, "/", kNewest), segment, "");
}

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

std::string numbered(const std::string& prefix, std::uint64_t number, const std::string& suffix) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "%012llu", static_cast<unsigned long long>(number));
  return prefix + digits + suffix;
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

void tell_newest_segment(const std::string& folder, std::uint64_t segment, bool syncs) {
  const std::string path = newest_path(folder, segment);
  std::error_code error;
  // Mostly it told of the one before. Without a descriptor, which there may be none of by now: the
  // old segment is closed, and the shard cannot go back.
  fs::rename(newest_path(folder, segment - 1), path, error);
  if (error == std::errc::no_such_file_or_directory) {
    error.clear();
    const std::vector<std::uint64_t> told = numbers_in(folder, kNewest, "");
    for (const std::uint64_t other : told)  // A folder that was copied onto another may have two.
      if (other != segment && !error) fs::rename(newest_path(folder, other), path, error);
    if (told.empty() && !transport::Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)))
      error = {errno, std::generic_category()};
  }
  if (error) blame_disk(path, "cannot be made", error);
  if (syncs) sync_folder(folder);
}

void require_newest_segment(const std::string& folder, std::uint64_t first,
                            const std::string& snapshot) {
  const std::vector<std::uint64_t> told = numbers_in(folder, kNewest, "");
  const bool is_told = !told.empty() && told.back() >= first;
  if (!is_told && snapshot.empty()) return;
  const std::uint64_t newest = is_told ? told.back() : first;
  std::uint64_t next = first;
  for (const std::uint64_t segment : numbers_in(folder, "segment-", ".log"))
    next = std::max(next, segment + 1);
  if (next > newest) return;
  throw ProtocolError(str("log: ", segment_path(folder, next), " is missing, but ",
                          is_told ? newest_path(folder, newest) : snapshot,
                          " tells that it was there; what was in it may have been acknowledged, ",
                          "and nothing was loaded. Bring the file back, or load a checkpoint into ",
                          "a server with an empty log folder"));
}

}  // namespace gradring::ps
