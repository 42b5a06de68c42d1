// A step of an update rule whose gradient is the fold of k vectors: the formulas of kernels/step.h,
// in the order of kernels/update_body.h. What is computed: gpu/stream_calls.h.
#pragma once

#include "cuda/fold.cuh"
#include "kernels/step.h"

namespace gradring::cuda {

// What comes before the rule, as update_body.h's prepare().
__device__ __forceinline__ void prepare(const gradring_step_scalars& s, float& weight,
                                        float& gradient) {
  if (s.clip_value > 0) gradient = kernels::clipped(gradient, s.clip_value);
  if (s.weight_decay != 0) gradient = kernels::with_decay(gradient, weight, s.weight_decay);
  if (s.shrink != 1) weight *= s.shrink;
}

// `fields` are those of gradring_step, of which kFields there are.

struct PlainSgd {
  static constexpr int kFields = 0;
  static __device__ __forceinline__ void apply(const gradring_step_scalars& s, float& weight,
                                               float*, float gradient) {
    prepare(s, weight, gradient);
    weight = kernels::descended(weight, gradient, s.descent);
  }
};

struct MomentumSgd {
  static constexpr int kFields = 1;
  static __device__ __forceinline__ void apply(const gradring_step_scalars& s, float& weight,
                                               float* fields, float gradient) {
    prepare(s, weight, gradient);
    fields[0] = s.is_first_step != 0
                    ? gradient
                    : kernels::with_momentum(fields[0], gradient, s.momentum, s.undampened);
    const float direction = s.is_nesterov != 0
                                ? kernels::nesterov_direction(fields[0], gradient, s.momentum)
                                : fields[0];
    weight = kernels::descended(weight, direction, s.descent);
  }
};

struct Adam {
  static constexpr int kFields = 2;
  static __device__ __forceinline__ void apply(const gradring_step_scalars& s, float& weight,
                                               float* fields, float gradient) {
    prepare(s, weight, gradient);
    fields[0] = kernels::moved(fields[0], gradient, s.mean_weight);
    fields[1] = kernels::mean_square_after(fields[1], gradient, s.square_decay, s.square_weight);
    weight = kernels::adam_step(weight, fields[0], fields[1], s.descent, s.root_correction, s.eps);
  }
};

template <typename Rule, typename From, unsigned kMost>
struct StepBody {
  using Folding = Folder<From, Sum, kMost>;
  static constexpr unsigned kRun = 4;
  static constexpr int kFields = Rule::kFields;
  static constexpr unsigned kRuns =
      runs_at_once(kRun * (kMost * sizeof(typename From::Item) + (1 + kFields) * sizeof(float)));

  Folding folding;
  const gradring_step& call;
  gradring_step_scalars scalars;

  template <unsigned kCount>
  struct Loaded {
    typename Folding::template Loaded<kCount> sources;
    Word<float, kCount> weights;
    Word<float, kCount> fields[kFields > 0 ? kFields : 1];
  };

  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint64_t at) const {
    Loaded<kCount> loaded;
    loaded.sources = folding.template load<kCount>(at);
    loaded.weights = load_once<kCount>(call.weights + at);
#pragma unroll
    for (int f = 0; f < kFields; ++f) loaded.fields[f] = load_once<kCount>(call.fields[f] + at);
    return loaded;
  }

  template <unsigned kCount>
  __device__ __forceinline__ void finish(const Loaded<kCount>& loaded, std::uint64_t at) const {
    const auto gradients = folding.template folded<kCount>(loaded.sources, at);
    auto weights = run_of<float, kCount>(loaded.weights);
    Run<float, kCount> fields[kFields > 0 ? kFields : 1];
#pragma unroll
    for (int f = 0; f < kFields; ++f) fields[f] = run_of<float, kCount>(loaded.fields[f]);
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      float own[kFields > 0 ? kFields : 1];
#pragma unroll
      for (int f = 0; f < kFields; ++f) own[f] = fields[f].at[i];
      Rule::apply(scalars, weights.at[i], own, gradients.at[i]);
#pragma unroll
      for (int f = 0; f < kFields; ++f) fields[f].at[i] = own[f];
    }
    store(call.weights + at, weights);
#pragma unroll
    for (int f = 0; f < kFields; ++f) store(call.fields[f] + at, fields[f]);
    if (call.copy != nullptr) copy_out<kCount>(weights, at);
  }

  __device__ __forceinline__ bool is_wide() const {
    bool all = folding.is_wide() && lies_on_widest(call.weights) && lies_on_widest(call.copy);
#pragma unroll
    for (int f = 0; f < kFields; ++f) all = all && lies_on_widest(call.fields[f]);
    return all;
  }

 private:
  static constexpr int kFloat16Code = 2;  // DType's.

  template <unsigned kCount>
  __device__ __forceinline__ void copy_out(const Run<float, kCount>& weights,
                                           std::uint64_t at) const {
    Run<std::uint16_t, kCount> halves;
    const bool is_float16 = call.copy_dtype == kFloat16Code;
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i)
      halves.at[i] =
          is_float16 ? Float16::rounded(weights.at[i]) : BFloat16::rounded(weights.at[i]);
    store(static_cast<std::uint16_t*>(call.copy) + at, halves);
  }
};

template <typename Rule, typename From, unsigned kMost>
__global__ void __launch_bounds__(kThreads, kBlocksOf<From, kMost>)
    step_kernel(const __grid_constant__ gradring_step call) {
  if (is_skipped(call.skip)) return;
  using Body = StepBody<Rule, From, kMost>;
  Body body{{call.fold, 0}, call, *call.scalars};
  sweep_stripes<Body::kRun, Body::kRuns>(body, call.fold.count, body.is_wide());
}

}  // namespace gradring::cuda
