#include "support/ps/power_cut.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/guarded.h"

namespace gradring::testing {
namespace {

namespace fs = std::filesystem;

struct Disk {
  std::string folder;  // "" while nobody looks.
  bool fails_next = false;
  std::map<std::string, ino_t> names;
  std::map<ino_t, std::string> contents;
  std::set<ino_t> clean;  // Since a sync of theirs failed.
};

Guarded<Disk>& disk() {
  static Guarded<Disk> only;
  return only;
}

// A write to the file changes this.
constexpr std::array<timespec, 2> kLongAgo{timespec{1, 0}, timespec{1, 0}};

struct stat about(int fd) {
  struct stat found{};
  ::fstat(fd, &found);
  return found;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void sync_names(Disk& now) {
  now.names.clear();
  std::map<ino_t, std::string> kept;
  for (const auto& entry : fs::directory_iterator(now.folder)) {
    struct stat found{};
    ::stat(entry.path().c_str(), &found);
    now.names[entry.path().filename().string()] = found.st_ino;
    kept[found.st_ino] = now.contents[found.st_ino];
  }
  now.contents = std::move(kept);
}

// Whether the sync succeeds.
bool sync_file(Disk& now, int fd, const std::string& path) {
  const struct stat found = about(fd);
  if (std::exchange(now.fails_next, false)) {
    ::futimens(fd, kLongAgo.data());
    now.clean.insert(found.st_ino);
    return false;
  }
  if (now.clean.contains(found.st_ino) && found.st_mtim.tv_sec == kLongAgo[1].tv_sec) return true;
  now.clean.erase(found.st_ino);
  now.contents[found.st_ino] = text_of(path);
  return true;
}

int synced(int fd, long number) {
  const bool is_done = disk().with([fd](Disk& now) {
    if (now.folder.empty()) return true;
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    std::error_code error;
    const fs::path path = fs::read_symlink(link, error);
    if (error) return true;
    if (path == now.folder) sync_names(now);
    if (path.parent_path() == now.folder) return sync_file(now, fd, path.string());
    return true;
  });
  if (is_done) return static_cast<int>(::syscall(number, fd));
  errno = EIO;
  return -1;
}

}  // namespace

PowerCut::PowerCut(const std::string& folder) {
  disk().with([&](Disk& now) { now.folder = fs::canonical(folder).string(); });
}

PowerCut::~PowerCut() {
  disk().with([](Disk& now) { now = {}; });
}

void PowerCut::fail_next_sync() {
  disk().with([](Disk& now) { now.fails_next = true; });
}

void PowerCut::come() {
  disk().with([](Disk& now) {
    for (const auto& entry : fs::directory_iterator(now.folder)) fs::remove(entry.path());
    for (const auto& [name, file] : now.names)
      std::ofstream(now.folder + "/" + name, std::ios::binary) << now.contents[file];
    now.contents.clear();
    now.clean.clear();
    now.names.clear();
    const std::string folder = now.folder;
    for (const auto& entry : fs::directory_iterator(folder)) {
      struct stat found{};
      ::stat(entry.path().c_str(), &found);
      now.names[entry.path().filename().string()] = found.st_ino;
      now.contents[found.st_ino] = text_of(entry.path().string());
    }
  });
}

}  // namespace gradring::testing

// Found before the C library's.
extern "C" int fsync(int fd) {
  return gradring::testing::synced(fd, SYS_fsync);
}
extern "C" int fdatasync(int fd) {
  return gradring::testing::synced(fd, SYS_fdatasync);
}
