// Calls of the codec kernels: fewer bytes for float32 vectors.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {
struct gradring_codec_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
};
}
