// start_thread: a thread, or an error that says what for. Machines refuse them: a limit of
// processes, a control group, no memory for a stack.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace gradring {

// Throws DeviceError. `owner`: whose thread it is, as docs/threads.md calls it.
template <typename Run>
std::thread start_thread(const char* owner, Run&& run) {
  try {
    return std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    throw DeviceError(str("this machine starts no more threads, and the ", owner,
                          " thread is needed: ", error.what(),
                          "; see ulimit -u and the limits of the control group"));
  }
}

}  // namespace gradring
