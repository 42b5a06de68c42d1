// k vectors to one. What is computed: gpu/stream_calls.h.
#pragma once

#include <type_traits>

#include "cuda/fold.cuh"

namespace gradring::cuda {

template <typename From, typename To, typename Op, unsigned kMost>
struct ReduceBody {
  using Item = typename To::Item;
  using Folding = Folder<From, Op, kMost>;
  static constexpr unsigned kRun = run_length<typename From::Item, Item>();
  static constexpr unsigned kRuns = runs_at_once(kMost * kRun * sizeof(typename From::Item));
  static constexpr bool kMayCopy = kMost == 1 && std::is_same_v<From, To>;

  Folding folding;
  Item* dst;
  bool is_copy;
  bool is_bad;

  template <unsigned kCount>
  using Loaded = typename Folding::template Loaded<kCount>;

  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint64_t at) const {
    return folding.template load<kCount>(at);
  }

  template <unsigned kCount>
  __device__ __forceinline__ void finish(const Loaded<kCount>& loaded, std::uint64_t at) {
    const auto folded = folding.template folded<kCount>(loaded, at);
    Run<Item, kCount> result;
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      result.at[i] = To::rounded(static_cast<typename To::Work>(folded.at[i]));
      is_bad |= !kernels::is_finite(To::widened(result.at[i]));
    }
    if constexpr (kMayCopy) {
      if (is_copy) result = run_of<Item, kCount>(loaded.words[0]);
    }
    store(dst + at, result);
  }
};

template <typename From, typename To, typename Op, unsigned kMost>
__global__ void __launch_bounds__(kThreads, kBlocksOf<From, kMost>)
    reduce_kernel(const __grid_constant__ gradring_reduce call) {
  using Body = ReduceBody<From, To, Op, kMost>;
  Body body{{call.fold, call.op}, static_cast<typename To::Item*>(call.dst), false, false};
  body.is_copy = Body::kMayCopy && call.fold.divisor == 1 && call.fold.scale == nullptr;
  const bool is_wide = body.folding.is_wide() && lies_on_widest(call.dst);
  sweep_stripes<Body::kRun, Body::kRuns>(body, call.fold.count, is_wide);
  if (call.nonfinite != nullptr && body.is_bad) *call.nonfinite = 1;
}

}  // namespace gradring::cuda
