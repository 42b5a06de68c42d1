// One line a record on standard error. The library is silent unless something is wrong that no
// exception can carry, such as a stranger on the port. Callable from any thread.
#pragma once

#include <string>

namespace gradring {

// Writes "gradring: rank 2: <text>" in one write. Rank -1 leaves the rank out.
void log_warning(int rank, const std::string& text);

// The same, but each distinct `key` only once a process, so that a port scan does not fill the
// disk.
void log_warning_once(int rank, const std::string& key, const std::string& text);

}  // namespace gradring
