// The kernels of one instruction set as a table of plain function pointers. reduce.cc picks a table
// once; the tests compare all tables that this machine can run. The entries are callable from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"

namespace gradring::kernels {

// `sources` holds `source_count` pointers; `bytes` is a multiple of the element's size. Floats are
// divided by `divisor` before they are rounded to memory; integer kernels ignore it (see
// DivideKernel).
using FoldKernel = void (*)(std::byte* dst, const std::byte* const* sources,
                            std::size_t source_count, std::size_t bytes, std::uint32_t divisor);
// Divides integers in place.
using DivideKernel = void (*)(std::byte* dst, std::size_t bytes, std::uint32_t divisor);

struct Table {
  const char* isa = "";
  // By the values of DType and ReduceOp. Null where is_defined() is false.
  FoldKernel left[kDTypeCount][kReduceOpCount] = {};
  FoldKernel tree[kDTypeCount][kReduceOpCount] = {};
  DivideKernel divide[kDTypeCount] = {};  // Null for floats and bool.
};

extern const Table kBaselineTable;
#if defined(__x86_64__)
extern const Table kAvx2Table;
extern const Table kAvx512Table;
#endif

// The tables that this CPU can run, slowest first; reduce() uses the last one. Never empty.
std::span<const Table* const> usable_tables();

}  // namespace gradring::kernels
