// Looks at tensors, unscales them, adds up their squares. What is computed: gpu/stream_calls.h.
//
// The order of the sum of squares. Elements of a piece are numbered from its first. With R = 16 /
// sizeof(item), thread t of 256 adds those whose number, divided by R and rounded down, is t modulo
// 256, in rising order. The threads of a warp are then added by halves (t + 16, t + 8, ..., t + 1),
// the warps in order. So is a sum over the pieces: thread t of 256 takes pieces t, t + 256, ...
#pragma once

#include "cuda/stream.cuh"

namespace gradring::cuda {

// Of what the threads of a block have; thread 0 gets it.
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double warps[kThreads / 32];
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = warps[0];
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < kThreads / 32; ++warp) sum += warps[warp];
  }
  __syncthreads();  // `warps` is free again.
  return sum;
}

template <typename Type>
class Checker {
 public:
  using Item = typename Type::Item;
  using Work = typename Type::Work;
  static constexpr unsigned kRun = run_length<Item>();
  static constexpr unsigned kRuns = 4;

  __device__ __forceinline__ explicit Checker(const float* scale)
      : scale_(scale_of(scale)), writes_(scale != nullptr) {}

  // Every run is the same thread's, wherever the tensor lies: the sum's order hangs on it.
  __device__ __forceinline__ void sweep(Item* tensor, std::uint32_t count) {
    const bool is_wide = lies_on_widest(tensor);
    for (std::uint32_t begin = 0; begin < count; begin += kThreads * kRun * kRuns) {
      Word<Item, kRun> words[kRuns];
#pragma unroll
      for (unsigned r = 0; r < kRuns; ++r) {
        const std::uint32_t at = begin + (r * kThreads + threadIdx.x) * kRun;
        if (is_wide && at + kRun <= count) words[r] = load_once<kRun>(tensor + at);
      }
#pragma unroll
      for (unsigned r = 0; r < kRuns; ++r) {
        const std::uint32_t at = begin + (r * kThreads + threadIdx.x) * kRun;
        if (is_wide && at + kRun <= count)
          finish_run(tensor + at, words[r]);
        else
          finish_items(tensor + at, at < count ? min(count - at, kRun) : 0);
      }
    }
  }

  __device__ __forceinline__ double take_squares() {
    const double squares = squares_;
    squares_ = 0;
    return squares;
  }
  __device__ __forceinline__ bool is_bad() const { return is_bad_; }

 private:
  __device__ __forceinline__ Item looked_at(Item item) {
    const Item seen =
        writes_ ? Type::rounded(Type::widened(item) * static_cast<Work>(scale_)) : item;
    const Work value = Type::widened(seen);
    is_bad_ |= !kernels::is_finite(value);
    const auto wide = static_cast<double>(value);
    squares_ += wide * wide;
    return seen;
  }

  __device__ __forceinline__ void finish_run(Item* to, const Word<Item, kRun>& word) {
    auto run = run_of<Item, kRun>(word);
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) run.at[i] = looked_at(run.at[i]);
    if (writes_) store(to, run);
  }

  __device__ __forceinline__ void finish_items(Item* to, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const Item seen = looked_at(to[i]);
      if (writes_) to[i] = seen;
    }
  }

  float scale_;
  bool writes_;
  bool is_bad_ = false;
  double squares_ = 0;
};

template <typename Type>
__global__ void __launch_bounds__(kThreads, kBlocks)
    check_kernel(const __grid_constant__ gradring_check call) {
  Checker<Type> checker(call.scale);
  for (std::uint32_t c = blockIdx.x; c < call.chunks.count; c += gridDim.x) {
    const gradring_chunk& chunk = call.chunks.at[c];
    auto* const tensor = reinterpret_cast<typename Type::Item*>(
        __ldg(reinterpret_cast<const unsigned long long*>(&chunk.tensor)));
    checker.sweep(tensor, __ldg(&chunk.count));
    if (call.square_sum == nullptr) continue;
    const double squares = block_sum(checker.take_squares());
    if (threadIdx.x == 0) call.scratch[c] = squares;
  }
  if (call.nonfinite != nullptr && checker.is_bad()) *call.nonfinite = 1;
}

// One block.
static __global__ void __launch_bounds__(kThreads, kBlocks)
    add_squares_kernel(const double* pieces, std::uint32_t count, double* total) {
  double sum = 0;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += pieces[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

static __global__ void clip_kernel(const __grid_constant__ gradring_clip call) {
  const double factor = call.max_norm / (kernels::root(*call.square_sum) + 1e-6);
  *call.factor = factor >= 1 ? 1.0F : static_cast<float>(factor);
}

}  // namespace gradring::cuda
