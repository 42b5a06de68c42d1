// k vectors folded from left to right, element by element, as kernels/reduce.h's kLeft does.
#pragma once

#include <type_traits>

#include "cuda/stream.cuh"

namespace gradring::cuda {

struct Sum {
  template <typename Work>
  static __device__ __forceinline__ Work of(int, Work a, Work b) {
    return a + b;
  }
};

// prod, min and max, asked for at run time: seldom, and bound by memory all the same. min and max
// are those of kernels/lanes.h: asked both ways round, and joined by "or".
struct AnyOperator {
  template <typename Work>
  static __device__ __forceinline__ Work smaller(Work a, Work b) {
    using Bits = std::conditional_t<sizeof(Work) == 8, std::uint64_t, std::uint32_t>;
    return kernels::bits_as<Work>(static_cast<Bits>(kernels::bits_as<Bits>(b < a ? b : a) |
                                                    kernels::bits_as<Bits>(a < b ? a : b)));
  }
  template <typename Work>
  static __device__ __forceinline__ Work of(int op, Work a, Work b) {
    if (op == kProd) return a * b;
    return op == kMin ? smaller(a, b) : -smaller(-a, -b);
  }
  static constexpr int kProd = 2;  // ReduceOp's.
  static constexpr int kMin = 3;
};

// Of any number of sources. More would not fit the registers.
template <typename From>
inline constexpr unsigned kMostAtOnce = sizeof(typename From::Item) == 8 ? 2 : 4;

// Loads up to kMost sources before the first operator; if that is kMostAtOnce, more follow as many
// at a time.
template <typename From, typename Op, unsigned kMost>
class Folder {
 public:
  using Work = typename From::Work;
  using Item = typename From::Item;

  template <unsigned kCount>
  struct Loaded {
    Word<Item, kCount> words[kMost];
  };

  __device__ __forceinline__ Folder(const gradring_fold& fold, int op)
      : fold_(fold),
        op_(op),
        scale_(scale_of(fold.scale)),
        divisor_(static_cast<Work>(fold.divisor)),
        is_power_of_two_((fold.divisor & (fold.divisor - 1)) == 0) {}

  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint64_t at) const {
    return load_from<kCount>(0, at);
  }

  template <unsigned kCount>
  __device__ __forceinline__ Run<Work, kCount> folded(const Loaded<kCount>& first,
                                                      std::uint64_t at) const {
    Run<Work, kCount> result = widened<kCount>(first.words[0]);
    combine<kCount, 1>(result, first, 0);
    if constexpr (kMost == kMostAtOnce<From>) {
#pragma unroll 1
      for (unsigned s = kMost; s < fold_.source_count; s += kMost) {
        const Loaded<kCount> more = load_from<kCount>(s, at);
        combine<kCount, 0>(result, more, s);
      }
    }
    finish(result);
    return result;
  }

  // All sources lie on 16 bytes.
  __device__ __forceinline__ bool is_wide() const {
    bool all = true;
    for (unsigned s = 0; s < fold_.source_count; ++s) all = all && lies_on_widest(fold_.sources[s]);
    return all;
  }

 private:
  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load_from(unsigned begin, std::uint64_t at) const {
    Loaded<kCount> loaded;
#pragma unroll
    for (unsigned s = 0; s < kMost; ++s)
      if (begin + s < fold_.source_count)
        loaded.words[s] =
            load_once<kCount>(static_cast<const Item*>(fold_.sources[begin + s]) + at);
    return loaded;
  }

  template <unsigned kCount>
  static __device__ __forceinline__ Run<Work, kCount> widened(const Word<Item, kCount>& word) {
    const auto items = run_of<Item, kCount>(word);
    Run<Work, kCount> run;
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) run.at[i] = From::widened(items.at[i]);
    return run;
  }

  template <unsigned kCount, unsigned kFirst>
  __device__ __forceinline__ void combine(Run<Work, kCount>& into, const Loaded<kCount>& loaded,
                                          unsigned begin) const {
#pragma unroll
    for (unsigned s = kFirst; s < kMost; ++s) {
      if (begin + s >= fold_.source_count) continue;
      const Run<Work, kCount> next = widened<kCount>(loaded.words[s]);
#pragma unroll
      for (unsigned i = 0; i < kCount; ++i) into.at[i] = Op::of(op_, into.at[i], next.at[i]);
    }
  }

  // As kernels/reduce_body.h: the reciprocal of a power of two divides exactly.
  template <unsigned kCount>
  __device__ __forceinline__ void finish(Run<Work, kCount>& run) const {
    const Work reciprocal = 1 / divisor_;
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      if (is_power_of_two_)
        run.at[i] *= reciprocal;
      else
        run.at[i] /= divisor_;
      run.at[i] *= static_cast<Work>(scale_);
    }
  }

  const gradring_fold& fold_;
  int op_;
  float scale_;
  Work divisor_;
  bool is_power_of_two_;
};

// Of a kernel that folds: what of many sources is on its way and what was added take more
// registers.
template <typename From, unsigned kMost>
inline constexpr unsigned kBlocksOf =
    kMost == kMostAtOnce<From> || sizeof(typename From::Item) == 8 ? 2 : kBlocks;

// The folder for a number of sources: 0 for one, 1 for two, 2 for more.
constexpr unsigned kFolders = 3;
constexpr unsigned folder_for(unsigned source_count) {
  return source_count <= 2 ? source_count - 1 : 2;
}

inline bool can_fold(const gradring_fold& fold) {
  constexpr std::uint32_t kMaxDivisor = 1u << 24;
  return fold.source_count >= 1 && fold.source_count <= GRADRING_STREAM_SOURCES &&
         fold.divisor >= 1 && fold.divisor <= kMaxDivisor;
}

}  // namespace gradring::cuda
