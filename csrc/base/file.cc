#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/text.h"

namespace gradring {
namespace {

std::string why(const std::string& what) {
  return str(what, ": ", std::strerror(errno));
}

std::string make_folder(const std::filesystem::path& folder) {
  if (folder.empty() || ::access(folder.c_str(), W_OK) == 0) return "";
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return why(folder.string());
  return "";
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string write_whole(const std::string& path, std::string_view text) {
  std::string problem = make_folder(std::filesystem::path(path).parent_path());
  if (!problem.empty()) return problem;
  const std::string draft = str(path, ".", ::getpid());
  ::unlink(draft.c_str());
  const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return why(draft);
  if (!write_all(fd, text)) problem = why(draft);
  ::close(fd);
  if (problem.empty() && ::rename(draft.c_str(), path.c_str()) != 0) problem = why(path);
  if (!problem.empty()) ::unlink(draft.c_str());
  return problem;
}

}  // namespace

std::string write_file(const std::string& path, std::string_view text) noexcept {
  try {
    return write_whole(path, text);
  } catch (...) {
    return "out of memory";
  }
}

}  // namespace gradring
