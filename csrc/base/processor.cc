#include "base/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gradring {

#if defined(__x86_64__)

namespace {

// As the vendor counts them: the base and the extension, which is added where that is 15.
unsigned family() {
  unsigned signature = 0, unused[3];
  if (__get_cpuid(1, &signature, &unused[0], &unused[1], &unused[2]) == 0) return 0;
  const unsigned base = signature >> 8 & 0xF;
  return base == 0xF ? base + (signature >> 20 & 0xFF) : base;
}

}  // namespace

bool core_lines_are_slow() {
  static const bool is_intel = __builtin_cpu_is("intel") != 0;
  return !is_intel;
}

bool copies_between_cores_by_itself() {
  static const bool is_zen_5 = __builtin_cpu_is("amd") != 0 && family() >= 26;
  return is_zen_5;
}

#else

bool core_lines_are_slow() {
  return true;
}
bool copies_between_cores_by_itself() {
  return false;
}

#endif

}  // namespace gradring
