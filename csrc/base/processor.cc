#include "base/processor.h"

namespace gradring {

bool core_lines_are_slow() {
#if defined(__x86_64__)
  static const bool is_intel = __builtin_cpu_is("intel") != 0;
  return !is_intel;
#else
  return true;
#endif
}

}  // namespace gradring
