#include <cstdio>
#include <cstdlib>

#include "fuzz/target.h"

void gradring::fuzz::require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}
