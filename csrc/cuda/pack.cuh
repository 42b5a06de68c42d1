// Tensors to bucket and back, a block for a piece. What is computed: gpu/stream_calls.h.
#pragma once

#include "cuda/stream.cuh"

namespace gradring::cuda {

enum class Feedback { kNone, kResidual };

template <typename From, typename To, Feedback kFeedback>
struct PackBody {
  using Work = typename From::Work;
  using FromItem = typename From::Item;
  using ToItem = typename To::Item;
  static constexpr bool kHasResidual = kFeedback == Feedback::kResidual;
  static constexpr unsigned kRun = kHasResidual ? 4 : run_length<FromItem, ToItem>();
  static constexpr unsigned kRuns =
      runs_at_once(kRun * (sizeof(FromItem) + (kHasResidual ? sizeof(float) : 0)));

  const FromItem* from;
  ToItem* to;
  float* residual;
  Work scale;
  bool saturates;
  bool is_bad;

  template <unsigned kCount>
  struct Loaded {
    Word<FromItem, kCount> values;
    Word<float, kHasResidual ? kCount : 1> residuals;
  };

  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint32_t at) const {
    Loaded<kCount> loaded;
    loaded.values = load_constant<kCount>(from + at);
    if constexpr (kHasResidual) loaded.residuals = load_once<kCount>(residual + at);
    return loaded;
  }

  template <unsigned kCount>
  __device__ __forceinline__ void finish(const Loaded<kCount>& loaded, std::uint32_t at) {
    const auto values = run_of<FromItem, kCount>(loaded.values);
    Run<ToItem, kCount> packed;
    Run<float, kHasResidual ? kCount : 1> residuals;
    if constexpr (kHasResidual) residuals = run_of<float, kCount>(loaded.residuals);
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      Work value = From::widened(values.at[i]) * scale;
      if constexpr (kHasResidual) {
        value += residuals.at[i];
        packed.at[i] = To::saturated(value);
        residuals.at[i] = kernels::is_finite(value) ? value - To::widened(packed.at[i]) : 0.0F;
      } else {
        packed.at[i] = saturates ? To::saturated(value) : To::rounded(value);
      }
      is_bad |= !kernels::is_finite(To::widened(packed.at[i]));
    }
    store(to + at, packed);
    if constexpr (kHasResidual) store(residual + at, residuals);
  }
};

template <typename From, typename To, Feedback kFeedback>
__global__ void __launch_bounds__(kThreads, kBlocks)
    pack_kernel(const __grid_constant__ gradring_pack call) {
  using Body = PackBody<From, To, kFeedback>;
  Body body{};
  body.scale = scale_of(call.scale);
  body.saturates = call.saturates != 0;
  for (std::uint32_t c = blockIdx.x; c < call.chunks.count; c += gridDim.x) {
    const gradring_chunk& chunk = call.chunks.at[c];
    const std::uint64_t place = __ldg(&chunk.place);
    body.from = reinterpret_cast<const typename From::Item*>(
        __ldg(reinterpret_cast<const unsigned long long*>(&chunk.tensor)));
    body.to = static_cast<typename To::Item*>(call.bucket) + place;
    bool is_wide = lies_on_widest(body.from) && lies_on_widest(body.to);
    if constexpr (Body::kHasResidual) {
      body.residual = call.residual + place;
      is_wide = is_wide && lies_on_widest(body.residual);
    }
    sweep<Body::kRun, Body::kRuns>(body, 0u, __ldg(&chunk.count), is_wide);
  }
  if (call.nonfinite != nullptr && body.is_bad) *call.nonfinite = 1;
}

template <typename From, typename To>
struct UnpackBody {
  using Work = typename From::Work;
  using FromItem = typename From::Item;
  using ToItem = typename To::Item;
  static constexpr unsigned kRun = run_length<FromItem, ToItem>();
  static constexpr unsigned kRuns = runs_at_once(kRun * (sizeof(FromItem) + sizeof(ToItem)));

  const FromItem* from;
  ToItem* to;
  Work scale;
  bool adds;
  bool is_bad;

  template <unsigned kCount>
  struct Loaded {
    Word<FromItem, kCount> values;
    Word<ToItem, kCount> sums;
  };

  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint32_t at) const {
    Loaded<kCount> loaded;
    loaded.values = load_constant<kCount>(from + at);
    if (adds) loaded.sums = load_once<kCount>(to + at);
    return loaded;
  }

  template <unsigned kCount>
  __device__ __forceinline__ void finish(const Loaded<kCount>& loaded, std::uint32_t at) {
    const auto values = run_of<FromItem, kCount>(loaded.values);
    Run<ToItem, kCount> unpacked{};
    if (adds) unpacked = run_of<ToItem, kCount>(loaded.sums);
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      Work value = From::widened(values.at[i]) * scale;
      if (adds) value = To::widened(unpacked.at[i]) + value;
      unpacked.at[i] = To::rounded(value);
      is_bad |= !kernels::is_finite(To::widened(unpacked.at[i]));
    }
    store(to + at, unpacked);
  }
};

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads, kBlocks)
    unpack_kernel(const __grid_constant__ gradring_unpack call) {
  if (is_skipped(call.skip)) return;
  using Body = UnpackBody<From, To>;
  Body body{};
  body.scale = scale_of(call.scale);
  body.adds = call.adds != 0;
  for (std::uint32_t c = blockIdx.x; c < call.chunks.count; c += gridDim.x) {
    const gradring_chunk& chunk = call.chunks.at[c];
    body.from = static_cast<const typename From::Item*>(call.bucket) + __ldg(&chunk.place);
    body.to = reinterpret_cast<typename To::Item*>(
        __ldg(reinterpret_cast<const unsigned long long*>(&chunk.tensor)));
    const bool is_wide = lies_on_widest(body.from) && lies_on_widest(body.to);
    sweep<Body::kRun, Body::kRuns>(body, 0u, __ldg(&chunk.count), is_wide);
  }
  if (call.nonfinite != nullptr && body.is_bad) *call.nonfinite = 1;
}

// Bits as they are.
template <typename Item>
struct CopyBody {
  static constexpr unsigned kRun = run_length<Item>();
  static constexpr unsigned kRuns = runs_at_once(kWidest);

  const Item* from;
  Item* to;

  template <unsigned kCount>
  using Loaded = Word<Item, kCount>;
  template <unsigned kCount>
  __device__ __forceinline__ Loaded<kCount> load(std::uint32_t at) const {
    return load_constant<kCount>(from + at);
  }
  template <unsigned kCount>
  __device__ __forceinline__ void finish(const Loaded<kCount>& loaded, std::uint32_t at) const {
    __stwb(reinterpret_cast<Loaded<kCount>*>(to + at), loaded);
  }
};

template <typename Item>
__global__ void __launch_bounds__(kThreads, kBlocks)
    copy_kernel(gradring_chunks chunks, Item* bucket, bool is_pack, const std::uint32_t* skip) {
  if (is_skipped(skip)) return;
  using Body = CopyBody<Item>;
  for (std::uint32_t c = blockIdx.x; c < chunks.count; c += gridDim.x) {
    const gradring_chunk& chunk = chunks.at[c];
    Item* const tensor =
        reinterpret_cast<Item*>(__ldg(reinterpret_cast<const unsigned long long*>(&chunk.tensor)));
    Item* const place = bucket + __ldg(&chunk.place);
    Body body{is_pack ? tensor : place, is_pack ? place : tensor};
    const bool is_wide = lies_on_widest(tensor) && lies_on_widest(place);
    sweep<Body::kRun, Body::kRuns>(body, 0u, __ldg(&chunk.count), is_wide);
  }
}

}  // namespace gradring::cuda
