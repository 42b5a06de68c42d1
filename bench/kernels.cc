// How fast reduce() and copy() are, beside memcpy, on one thread: GB/s of payload (the result's
// bytes over the median time), with buffers that fit into each level of the cache and into none.
// In place: dst is the first source, as in a collective. Every answer is checked before its time is
// printed. Run: bench_kernels [rounds [isa [dtype]]]; by default 15
// rounds, what reduce() would use, and every dtype listed below.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/table.h"
#include "support/kernels_reference.h"

namespace gradring {
namespace {

constexpr std::size_t kSizes[] = {16 << 10, 128 << 10, 4 << 20, 64 << 20};
constexpr double kSecondsPerRound = 0.004;

double seconds_of(const std::function<void()>& work, std::size_t calls) {
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < calls; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double gigabytes_per_second(std::size_t bytes, int rounds, const std::function<void()>& work) {
  const double once = std::max(std::min(seconds_of(work, 1), seconds_of(work, 1)), 1e-9);
  const auto calls = static_cast<std::size_t>(std::max(1.0, kSecondsPerRound / once));
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round)
    seconds.push_back(seconds_of(work, calls) / static_cast<double>(calls));
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return static_cast<double>(bytes) / seconds[static_cast<std::size_t>(rounds / 2)] / 1e9;
}

// Small integers: adding them in place again and again never makes a denormal, which would be slow.
reference::Buffer elements(DType dtype, std::size_t bytes, std::size_t seed) {
  reference::Buffer buffer(bytes);
  const std::size_t item = item_bytes(dtype);
  for (std::size_t i = 0; i < bytes / item; ++i) {
    const double value = static_cast<double>((i * 7 + seed * 5) % 5) - 2;
    std::byte* const at = &buffer[i * item];
    if (dtype == DType::kFloat64) {
      std::memcpy(at, &value, item);
    } else if (dtype == DType::kFloat32) {
      const auto single = static_cast<float>(value);
      std::memcpy(at, &single, item);
    } else if (is_half(dtype)) {
      const std::uint16_t half = reference::nearest_half(dtype, value);
      std::memcpy(at, &half, item);
    } else {
      const auto integer = static_cast<std::int64_t>(value);
      std::memcpy(at, &integer, item);
    }
  }
  return buffer;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench_kernels: wrong answer: %s\n", what.c_str());
  std::exit(1);
}

struct Case {
  const kernels::Table& table;
  DType dtype;
  std::size_t k;
  kernels::Fold fold;
  int rounds;
};

void bench_reduce(const Case& c) {
  const auto& [table, dtype, k, fold, rounds] = c;
  const char* const fold_name = fold == kernels::Fold::kLeft ? "left" : "tree";
  const std::string label =
      std::string(name(dtype)) + " sum k=" + std::to_string(k) + " " + fold_name;
  std::printf("%-24s", label.c_str());
  for (const std::size_t bytes : kSizes) {
    std::vector<reference::Buffer> sources;
    for (std::size_t s = 0; s < k; ++s) sources.push_back(elements(dtype, bytes, s));
    const kernels::Reduction reduction{dtype, ReduceOp::kSum, fold, 1};
    const auto& kernels = fold == kernels::Fold::kLeft ? table.left : table.tree;
    const kernels::FoldKernel kernel =
        kernels[static_cast<std::size_t>(dtype)][static_cast<std::size_t>(ReduceOp::kSum)];

    std::vector<reference::Buffer> heads;  // The reference is slow: a part of each buffer will do.
    for (const auto& source : sources) heads.emplace_back(source.begin(), source.begin() + 16384);
    std::vector<const std::byte*> pointers;
    for (const auto& source : sources) pointers.push_back(source.data());
    std::byte* const dst = sources[0].data();
    kernel(dst, pointers.data(), k, bytes, 1);
    const reference::Buffer expected = reference::reduce(heads, reduction);
    if (std::memcmp(dst, expected.data(), expected.size()) != 0) fail(label);

    std::printf("%9.1f", gigabytes_per_second(bytes, rounds,
                                              [&] { kernel(dst, pointers.data(), k, bytes, 1); }));
    std::fflush(stdout);
  }
  std::printf("\n");
}

void bench_copy(const char* label, void (*copy)(std::byte*, const std::byte*, std::size_t),
                int rounds) {
  std::printf("%-24s", label);
  for (const std::size_t bytes : kSizes) {
    const reference::Buffer src = elements(DType::kInt64, bytes, 1);
    reference::Buffer dst(bytes);
    copy(dst.data(), src.data(), bytes);
    if (dst != src) fail(label);
    std::printf("%9.1f",
                gigabytes_per_second(bytes, rounds, [&] { copy(dst.data(), src.data(), bytes); }));
    std::fflush(stdout);
  }
  std::printf("\n");
}

void bench(const kernels::Table& table, int rounds, const std::string& only_dtype) {
  std::printf("GB/s of payload, median of %d rounds, kernels: %s\n", rounds, table.isa);
  std::printf("%-24s%9s%9s%9s%9s\n", "", "16 KiB", "128 KiB", "4 MiB", "64 MiB");
  bench_copy(
      "memcpy",
      [](std::byte* dst, const std::byte* src, std::size_t bytes) { std::memcpy(dst, src, bytes); },
      rounds);
  bench_copy("copy", kernels::copy, rounds);
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16, DType::kInt32}) {
    if (!only_dtype.empty() && only_dtype != name(dtype)) continue;
    for (const std::size_t k : {2u, 3u, 4u, 8u})
      bench_reduce({table, dtype, k, kernels::Fold::kLeft, rounds});
    for (const std::size_t k : {4u, 8u})
      bench_reduce({table, dtype, k, kernels::Fold::kTree, rounds});
  }
}

}  // namespace
}  // namespace gradring

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const auto tables = gradring::kernels::usable_tables();
  const std::string isa = argc > 2 ? argv[2] : tables.back()->isa;
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const auto* table) { return table->isa == isa; });
  if (rounds < 1 || found == tables.end()) {
    std::fprintf(stderr, "usage: bench_kernels [rounds [isa [dtype]]]; this CPU can run:");
    for (const auto* table : tables) std::fprintf(stderr, " %s", table->isa);
    std::fprintf(stderr, "\n");
    return 2;
  }
  gradring::bench(**found, rounds, argc > 3 ? argv[3] : "");
}
