// Calls of the row kernels: tables of rows, addressed by ids.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {
struct gradring_row_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
};
}
