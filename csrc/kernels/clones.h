// GRADRING_CLONES before a function: it is compiled twice, and the CPU chooses when the program
// starts; where the compiler can, and no sanitizer stands in the way of its resolver.
#pragma once

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GRADRING_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define GRADRING_CLONES
#endif
