// Kernels of update rules on rows (kernels/update.h). A power of two of a warp's lanes has a row:
// it looks first whether the row's gradient is finite, then changes the row. The first four columns
// of each lane stay on the chip in between; of a row of at most 128 that is all.
#pragma once

#include "cuda/rows.cuh"
#include "cuda/scan.cuh"
#include "kernels/step.h"

namespace gradring::cuda {

// kernels::RuleKind.
constexpr int kSumRule = 0;
constexpr int kSgdRule = 1;
constexpr int kAdagradRule = 2;
constexpr int kAdamRule = 4;
constexpr int kAdamWRule = 5;
constexpr int kSparseAdamRule = 6;

struct ApplyWork {
  gradring_apply_rows call;
  unsigned lanes_log2;  // Of the lanes that have a row.
};

// A step's scalars for one row: kernels::Scalars<float>.
struct RowStep {
  float descent;
  float root_correction;
  float weight_decay;
  float shrink;
  bool is_first;
};

template <int kRule>
constexpr bool kIsAdam = kRule == kAdamRule || kRule == kAdamWRule || kRule == kSparseAdamRule;

// In double, as kernels/updater.cc works them out.
template <int kRule>
__device__ __forceinline__ RowStep step_of(const gradring_apply_rows& call, double lr,
                                           std::uint64_t number) {
  const gradring_rule& rule = call.rule;
  RowStep step = {static_cast<float>(-lr), 1.0F, static_cast<float>(rule.weight_decay), 1.0F,
                  number == 1};
  if constexpr (kRule == kAdagradRule) {
    if (rule.lr_decay != 0)
      step.descent =
          static_cast<float>(-(lr / (1 + (static_cast<double>(number) - 1) * rule.lr_decay)));
  }
  if constexpr (kIsAdam<kRule>) {
    const std::uint64_t last = call.correction_count - 1;
    const gradring_bias_correction correction =
        call.corrections[number - 1 < last ? number - 1 : last];
    if constexpr (kRule == kSparseAdamRule) {
      step.descent = static_cast<float>(-(lr * correction.root_of_square / correction.mean));
    } else {
      step.descent = static_cast<float>(-(lr / correction.mean));
      step.root_correction = static_cast<float>(correction.root_of_square);
    }
  }
  if constexpr (kRule == kAdamWRule) step.shrink = static_cast<float>(1 - lr * rule.weight_decay);
  if constexpr (kRule == kAdamWRule || kRule == kSumRule || kRule == kSparseAdamRule)
    step.weight_decay = 0;
  return step;
}

template <int kRule>
__device__ __forceinline__ void step_element(const gradring_rule& rule, const RowStep& step,
                                             float gradient, float& weight, float& first,
                                             float& second) {
  if (rule.clip_value > 0) gradient = kernels::clipped(gradient, rule.clip_value);
  if (step.weight_decay != 0) gradient = kernels::with_decay(gradient, weight, step.weight_decay);
  if (step.shrink != 1) weight *= step.shrink;
  if constexpr (kRule == kSumRule) {
    weight += gradient;
  } else if constexpr (kRule == kSgdRule) {
    float direction = gradient;
    if (rule.momentum != 0) {
      first = step.is_first
                  ? gradient
                  : kernels::with_momentum(first, gradient, rule.momentum, rule.undampened);
      direction = rule.is_nesterov != 0
                      ? kernels::nesterov_direction(first, gradient, rule.momentum)
                      : first;
    }
    weight = kernels::descended(weight, direction, step.descent);
  } else if constexpr (kRule == kAdagradRule) {
    first = kernels::square_sum_after(first, gradient);
    weight = kernels::adagrad_step(weight, gradient, first, step.descent, rule.eps);
  } else if constexpr (kRule == kSparseAdamRule) {
    first = kernels::sparse_adam_mean(first, gradient, rule.mean_weight);
    second = kernels::sparse_adam_squares(second, gradient, rule.square_weight);
    weight = kernels::sparse_adam_step(weight, first, second, step.descent, rule.eps);
  } else {
    first = kernels::moved(first, gradient, rule.mean_weight);
    second = kernels::mean_square_after(second, gradient, rule.square_decay, rule.square_weight);
    weight =
        kernels::adam_step(weight, first, second, step.descent, step.root_correction, rule.eps);
  }
}

// kWide columns of a row, of its gradient, weights and state.
template <unsigned kWide>
struct Columns {
  float gradient[kWide];
  float weights[kWide];
  float first[kWide];
  float second[kWide];
};

template <unsigned kWide>
__device__ __forceinline__ void load_own(const float* from, float (&items)[kWide]) {
  if constexpr (kWide == 1) {
    items[0] = *from;
  } else {
    const float4 four = *reinterpret_cast<const float4*>(from);
    items[0] = four.x;
    items[1] = four.y;
    items[2] = four.z;
    items[3] = four.w;
  }
}

template <unsigned kWide>
__device__ __forceinline__ void load_columns(const gradring_apply_rows& call, std::uint64_t i,
                                             std::uint64_t slot, unsigned column,
                                             Columns<kWide>& columns) {
  load_items(call.gradients + i * call.where.dim + column, columns.gradient);
  load_own(call.weights + slot * call.stride + column, columns.weights);
  const std::uint64_t at = slot * call.field_stride + column;
  if (call.fields[0] != nullptr) load_own(call.fields[0] + at, columns.first);
  if (call.fields[1] != nullptr) load_own(call.fields[1] + at, columns.second);
}

template <int kRule, unsigned kWide>
__device__ __forceinline__ void change_columns(const gradring_apply_rows& call, const RowStep& step,
                                               std::uint64_t slot, unsigned column,
                                               Columns<kWide>& columns) {
#pragma unroll
  for (unsigned i = 0; i < kWide; ++i)
    step_element<kRule>(call.rule, step, columns.gradient[i], columns.weights[i], columns.first[i],
                        columns.second[i]);
  store_items(call.weights + slot * call.stride + column, columns.weights);
  const std::uint64_t at = slot * call.field_stride + column;
  if (call.fields[0] != nullptr) store_items(call.fields[0] + at, columns.first);
  if (call.fields[1] != nullptr) store_items(call.fields[1] + at, columns.second);
}

template <unsigned kWide>
__device__ __forceinline__ bool are_finite(const float (&values)[kWide]) {
  bool all = true;
#pragma unroll
  for (unsigned i = 0; i < kWide; ++i) all = all && kernels::is_finite(values[i]);
  return all;
}

// Lanes without a row, or without columns, come along for what the warp does together.
template <int kRule, unsigned kWide>
__global__ void __launch_bounds__(kRowThreads) apply(const __grid_constant__ ApplyWork work) {
  const gradring_apply_rows& call = work.call;
  const gradring_row_slots& where = call.where;
  const unsigned lanes = 1u << work.lanes_log2;
  const unsigned lane = lane_index() & (lanes - 1);
  const unsigned leader = lane_index() - lane;
  const std::uint64_t i =
      (std::uint64_t{blockIdx.x} * kRowThreads + threadIdx.x) >> work.lanes_log2;
  const bool is_listed = i < count_of(where.count_at, where.most);
  const std::uint64_t slot = is_listed ? slot_at(where, i) : 0;
  const bool is_row = is_listed && slot < where.rows;
  if (is_listed && !is_row && lane == 0) add_one(where.missing);
  const unsigned begin = lane * kWide;
  const unsigned apart = lanes * kWide;
  Columns<kWide> columns = {};
  bool is_finite = true;
  if (is_row && begin < where.dim) {
    load_columns(call, i, slot, begin, columns);
    is_finite = are_finite(columns.gradient);
    for (unsigned column = begin + apart; column < where.dim; column += apart) {
      float gradient[kWide];
      load_items(call.gradients + i * where.dim + column, gradient);
      is_finite = is_finite && are_finite(gradient);
    }
  }
  const unsigned own_lanes = (lanes == kWarpLanes ? kAllLanes : (1u << lanes) - 1) << leader;
  const bool is_refused = (__ballot_sync(kAllLanes, !is_finite) & own_lanes) != 0;
  std::uint32_t taken = 0;  // Steps of this row.
  if (is_row && lane == 0) {
    if (is_refused) add_one(call.refused);
    if (!is_refused && call.steps != nullptr) taken = ++call.steps[slot];
  }
  taken = __shfl_sync(kAllLanes, taken, static_cast<int>(leader));
  if (!is_row || is_refused || begin >= where.dim) return;
  const gradring_rule_step now = call.step_at == nullptr ? call.step : *call.step_at;
  const RowStep step = step_of<kRule>(call, now.lr, call.steps == nullptr ? now.step : taken);
  change_columns<kRule>(call, step, slot, begin, columns);
  for (unsigned column = begin + apart; column < where.dim; column += apart) {
    load_columns(call, i, slot, column, columns);
    change_columns<kRule>(call, step, slot, column, columns);
  }
}

}  // namespace gradring::cuda
