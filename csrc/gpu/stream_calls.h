// Calls of the streaming kernels: what reads and writes each element of long vectors once.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {
struct gradring_stream_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
};
}
