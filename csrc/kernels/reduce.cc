// Picks the kernels for this CPU, and what every instruction set has in common: checks, the
// operands that need no arithmetic, the division of integers.
#include "kernels/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.h"
#include "kernels/table.h"

namespace gradring::kernels {
namespace {

// Exact in float32, so that a quotient is rounded once; more ranks than any cluster has.
constexpr std::uint32_t kMaxDivisor = 1u << 24;

#if defined(__x86_64__)
// Not by __builtin_cpu_supports: older clangs do not know the name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

struct UsableTables {
  const Table* tables[3] = {&kBaselineTable};
  std::size_t count = 1;

  UsableTables() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !has_f16c()) return;
    tables[count++] = &kAvx2Table;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      tables[count++] = &kAvx512Table;
#endif
  }
};

}  // namespace

std::span<const Table* const> usable_tables() {
  static const UsableTables usable;
  return {usable.tables, usable.count};
}

void reduce(std::byte* dst, std::span<const std::byte* const> sources, std::size_t count,
            const Reduction& reduction) {
  static const Table& table = *usable_tables().back();
  GRADRING_ASSERT(!sources.empty());
  GRADRING_ASSERT(is_defined(reduction.dtype, reduction.op));
  GRADRING_ASSERT(reduction.divisor >= 1 && reduction.divisor <= kMaxDivisor);

  const auto dtype = static_cast<std::size_t>(reduction.dtype);
  const auto op = static_cast<std::size_t>(reduction.op);
  const std::size_t bytes = count * item_bytes(reduction.dtype);
  const bool is_copy = sources.size() == 1 && reduction.dtype != DType::kBool &&
                       (reduction.divisor == 1 || table.divide[dtype] != nullptr);
  if (is_copy) {
    if (dst != sources[0]) kernels::copy(dst, sources[0], bytes);
  } else {
    const auto& kernels = reduction.fold == Fold::kLeft ? table.left : table.tree;
    kernels[dtype][op](dst, sources.data(), sources.size(), bytes, reduction.divisor);
  }
  if (reduction.divisor != 1 && table.divide[dtype] != nullptr)
    table.divide[dtype](dst, bytes, reduction.divisor);
}

}  // namespace gradring::kernels
