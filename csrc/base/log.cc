#include "base/log.h"

#include <unistd.h>

#include <set>

#include "base/guarded.h"
#include "base/text.h"

namespace gradring {
namespace {

constexpr std::size_t kKeysKept =
    1024;  // Beyond it every further key is dropped: a bound on memory and on output.

}  // namespace

void log_warning(int rank, const std::string& text) {
  const std::string line =
      rank < 0 ? str("gradring: ", text, "\n") : str("gradring: rank ", rank, ": ", text, "\n");
  // A failing stderr is nobody's problem that could be reported anywhere.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void log_warning_once(int rank, const std::string& key, const std::string& text) {
  static Guarded<std::set<std::string>> seen;
  const bool is_new = seen.with([&](auto& keys) {
    return keys.size() < kKeysKept && keys.insert(str(rank, '|', key)).second;
  });
  if (is_new) log_warning(rank, text);
}

}  // namespace gradring
