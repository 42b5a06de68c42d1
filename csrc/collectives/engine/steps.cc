#include "collectives/engine/steps.h"

#include "base/error.h"

namespace gradring::collectives {

void Steps::run(Level& level, const Operation& operation) {
  try {
    level.execute(operation, call_, seq_, idle_);
  } catch (...) {
    engine_.note_waited_for(level.waited_for());
    throw;
  }
  idle_.reset();
}

void Steps::wait_until(const std::function<bool()>& is_so, const char* what) {
  engine_.note_waited_for(str("; waiting for ", what));
  while (!is_so()) idle_.on_clock();
  engine_.note_waited_for("");
  idle_.reset();
}

}  // namespace gradring::collectives
