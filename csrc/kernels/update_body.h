// The update kernels of one instruction set. Each update_<isa>.cc includes it once, compiled with
// its flags: everything here has internal linkage and calls no inline function of the standard
// library, or the linker could hand one file's copy to the whole program.
//
// What is fused with what: step.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/step.h"
#include "kernels/update_table.h"

namespace gradring::kernels {
namespace {

inline float magnitude(float a) {
  return __builtin_fabsf(a);
}
inline double magnitude(double a) {
  return __builtin_fabs(a);
}
inline float with_sign(float a, float sign) {
  return __builtin_copysignf(a, sign);
}
inline double with_sign(double a, double sign) {
  return __builtin_copysign(a, sign);
}

// In double, element i added to lane i mod 8; then the lanes in pairs: 4 apart, 2 apart, 1 apart.
template <typename Float>
double sum_of_squares(std::size_t count, const Float* values) {
  constexpr std::size_t kHalf = 4;  // One register of AVX2.
  typedef double Lanes __attribute__((vector_size(kHalf * sizeof(double))));
  typedef Float Items __attribute__((vector_size(kHalf * sizeof(Float))));
  Lanes sums[2] = {};
  const auto add = [&sums](const Float* from) {
    for (std::size_t half = 0; half < 2; ++half) {
      Items items;
      __builtin_memcpy(&items, from + half * kHalf, sizeof items);
      const Lanes wide = __builtin_convertvector(items, Lanes);
      sums[half] += wide * wide;
    }
  };
  std::size_t at = 0;
  for (; count - at >= 2 * kHalf; at += 2 * kHalf) add(values + at);
  if (at < count) {
    Float rest[2 * kHalf] = {};
    __builtin_memcpy(rest, values + at, (count - at) * sizeof(Float));
    add(rest);
  }
  const Lanes four = sums[0] + sums[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

template <typename Float>
Float mean_square(std::size_t count, const Float* gradient) {
  return static_cast<Float>(sum_of_squares(count, gradient) / static_cast<double>(count));
}

// As torch.nn.utils.clip_grad_value_ and clip_grad_norm_ do before a step, and the part of weight
// decay that is a part of the gradient.
template <typename Float>
void prepare(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
             Float* __restrict gradient) {
  if (s.clip_value > 0) {
    const Float most = s.clip_value;
    for (std::size_t i = 0; i < count; ++i) gradient[i] = clipped(gradient[i], most);
  }
  if (s.clip_norm > 0) {
    const double coefficient =
        s.clip_norm / (__builtin_sqrt(sum_of_squares(count, gradient)) + 1e-6);
    if (coefficient < 1) {
      const Float factor = static_cast<Float>(coefficient);
      for (std::size_t i = 0; i < count; ++i) gradient[i] *= factor;
    }
  }
  if (s.weight_decay != 0) {
    const Float decay = s.weight_decay;
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = with_decay(gradient[i], weights[i], decay);
  }
  if (s.shrink != 1) {
    const Float shrink = s.shrink;
    for (std::size_t i = 0; i < count; ++i) weights[i] *= shrink;
  }
}

// torch.lerp, in place.
template <typename Float>
void lerp(Float weight, std::size_t count, Float* __restrict mean,
          const Float* __restrict gradient) {
  if (weight < Float{0.5}) {
    for (std::size_t i = 0; i < count; ++i) mean[i] = moved_from_mean(mean[i], gradient[i], weight);
  } else {
    for (std::size_t i = 0; i < count; ++i)
      mean[i] = moved_from_gradient(mean[i], gradient[i], weight);
  }
}

template <typename Float>
void sum(const Scalars<Float>& s, std::size_t count, Float* __restrict weights, Float* const*,
         Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  for (std::size_t i = 0; i < count; ++i) weights[i] += gradient[i];
}

template <typename Float>
void sgd(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
         Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  const Float descent = s.descent;
  if (s.momentum == 0) {
    for (std::size_t i = 0; i < count; ++i)
      weights[i] = descended(weights[i], gradient[i], descent);
    return;
  }
  Float* __restrict buffer = fields[0];
  const Float momentum = s.momentum;
  if (s.is_first_step) {
    __builtin_memcpy(buffer, gradient, count * sizeof(Float));
  } else {
    const Float undampened = s.undampened;
    for (std::size_t i = 0; i < count; ++i)
      buffer[i] = with_momentum(buffer[i], gradient[i], momentum, undampened);
  }
  if (s.is_nesterov) {
    for (std::size_t i = 0; i < count; ++i)
      weights[i] =
          descended(weights[i], nesterov_direction(buffer[i], gradient[i], momentum), descent);
  } else {
    for (std::size_t i = 0; i < count; ++i) weights[i] = descended(weights[i], buffer[i], descent);
  }
}

template <typename Float>
void adagrad(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
             Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict squares = fields[0];
  const Float descent = s.descent;
  const Float eps = s.eps;
  for (std::size_t i = 0; i < count; ++i) {
    squares[i] = square_sum_after(squares[i], gradient[i]);
    weights[i] = adagrad_step(weights[i], gradient[i], squares[i], descent, eps);
  }
}

template <typename Float>
void rmsprop(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
             Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict squares = fields[0];
  const Float decay = s.square_decay;
  const Float weight = s.square_weight;
  const Float eps = s.eps;
  const Float descent = s.descent;
  const Float momentum = s.momentum;
  for (std::size_t i = 0; i < count; ++i)
    squares[i] = mean_square_after(squares[i], gradient[i], decay, weight);
  // With momentum the buffer is multiplied by minus the learning rate, else the gradient.
  const Float scale = momentum > 0 ? Float{1} : descent;
  // What is added to the weight or the buffer is put where the gradient was.
  if (s.is_centered) {
    Float* __restrict mean = fields[1];
    lerp(s.mean_weight, count, mean, gradient);
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = scale * gradient[i] / (root(fma(-mean[i], mean[i], squares[i])) + eps);
  } else {
    for (std::size_t i = 0; i < count; ++i)
      gradient[i] = scale * gradient[i] / (root(squares[i]) + eps);
  }
  if (momentum > 0) {
    Float* __restrict buffer = fields[s.is_centered ? 2 : 1];
    for (std::size_t i = 0; i < count; ++i) {
      buffer[i] = buffer[i] * momentum + gradient[i];
      weights[i] = fma(buffer[i], descent, weights[i]);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) weights[i] += gradient[i];
  }
}

// AdamW differs in its scalars only.
template <typename Float>
void adam(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
          Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict mean = fields[0];
  Float* __restrict squares = fields[1];
  lerp(s.mean_weight, count, mean, gradient);
  const Float decay = s.square_decay;
  const Float weight = s.square_weight;
  const Float correction = s.root_correction;
  const Float eps = s.eps;
  const Float descent = s.descent;
  for (std::size_t i = 0; i < count; ++i) {
    squares[i] = mean_square_after(squares[i], gradient[i], decay, weight);
    weights[i] = adam_step(weights[i], mean[i], squares[i], descent, correction, eps);
  }
}

template <typename Float>
void sparse_adam(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
                 Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict mean = fields[0];
  Float* __restrict squares = fields[1];
  const Float mean_weight = s.mean_weight;
  const Float square_weight = s.square_weight;
  const Float eps = s.eps;
  const Float descent = s.descent;
  for (std::size_t i = 0; i < count; ++i) {
    mean[i] = sparse_adam_mean(mean[i], gradient[i], mean_weight);
    squares[i] = sparse_adam_squares(squares[i], gradient[i], square_weight);
    weights[i] = sparse_adam_step(weights[i], mean[i], squares[i], descent, eps);
  }
}

template <typename Float>
void row_wise_adagrad(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
                      Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float& squares = fields[0][0];
  squares += mean_square(count, gradient);
  const Float factor = s.descent / (root(squares) + s.eps);
  for (std::size_t i = 0; i < count; ++i) weights[i] = fma(gradient[i], factor, weights[i]);
}

template <typename Float>
void row_wise_adam(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
                   Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict mean = fields[0];
  Float& square = fields[1][0];
  lerp(s.mean_weight, count, mean, gradient);
  square = square * s.square_decay + s.square_weight * mean_square(count, gradient);
  const Float factor = s.descent / (root(square) / s.root_correction + s.eps);
  for (std::size_t i = 0; i < count; ++i) weights[i] = fma(mean[i], factor, weights[i]);
}

template <typename Float>
void ftrl(const Scalars<Float>& s, std::size_t count, Float* __restrict weights,
          Float* const* fields, Float* __restrict gradient) {
  prepare(s, count, weights, gradient);
  Float* __restrict squares = fields[0];
  Float* __restrict linear = fields[1];
  const Float lr = s.lr;
  const Float l1 = s.l1;
  const Float l2 = s.l2;
  const Float beta = s.beta;
  for (std::size_t i = 0; i < count; ++i) {
    const Float before = root(squares[i]);
    squares[i] = fma(gradient[i], gradient[i], squares[i]);
    const Float after = root(squares[i]);
    const Float sigma = (after - before) / lr;
    linear[i] += gradient[i] - sigma * weights[i];
    const Float moved = (with_sign(l1, linear[i]) - linear[i]) / ((beta + after) / lr + l2);
    weights[i] = magnitude(linear[i]) <= l1 ? Float{0} : moved;
  }
}

bool all_finite(const float* values, std::size_t count) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  constexpr std::size_t kBlock = 4096;  // Between looks whether it is decided.
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = count - begin < kBlock ? count : begin + kBlock;
    std::uint32_t bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, values + i, sizeof bits);
      bad |= static_cast<std::uint32_t>((bits & kInfinity) == kInfinity);
    }
    if (bad != 0) return false;
  }
  return true;
}

template <typename Float>
constexpr void fill(UpdateKernel<Float> (&kernels)[kRuleKindCount]) {
  kernels[static_cast<std::size_t>(RuleKind::kSum)] = &sum<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kSgd)] = &sgd<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kAdagrad)] = &adagrad<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kRmsProp)] = &rmsprop<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kAdam)] = &adam<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kAdamW)] = &adam<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kSparseAdam)] = &sparse_adam<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kRowWiseAdagrad)] = &row_wise_adagrad<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kRowWiseAdam)] = &row_wise_adam<Float>;
  kernels[static_cast<std::size_t>(RuleKind::kFtrl)] = &ftrl<Float>;
}

constexpr UpdateTable make_update_table(const char* isa) {
  UpdateTable table;
  table.isa = isa;
  fill(table.floats);
  fill(table.doubles);
  table.is_finite = &all_finite;
  return table;
}

}  // namespace
}  // namespace gradring::kernels
