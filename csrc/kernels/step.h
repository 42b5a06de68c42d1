// The formulas of update rules, one element at a time: shared by the CPU's loops (update_body.h)
// and the GPU's kernels. Additions that torch's kernels fuse with the multiplication before them
// (AVX2 and AVX-512 builds: add with alpha, addcmul, lerp; not addcdiv) are written as fma, and
// nothing else is fused. fma rounds correctly with or without the instruction, so the bits depend
// on no processor, but for what Adam's scalars have of the C library's pow (bias_correction): that
// may differ by one in the last place from one kind of processor to another. torch's own sqrt may
// be off by one in the last place (it is a vendor library's); this one is exact. What the scalars
// mean: update_table.h.
#pragma once

#include "kernels/portable.h"

namespace gradring::kernels {

// As torch.nn.utils.clip_grad_value_.
template <typename Float>
GRADRING_HD Float clipped(Float gradient, Float most) {
  const Float least = gradient < -most ? -most : gradient;
  return least > most ? most : least;
}

template <typename Float>
GRADRING_HD Float with_decay(Float gradient, Float weight, Float weight_decay) {
  return fma(weight, weight_decay, gradient);
}

// torch.lerp from `mean` towards `gradient`: from both ends, so that it is exact at either. The
// first is for share < 0.5, the second for the others.
template <typename Float>
GRADRING_HD Float moved_from_mean(Float mean, Float gradient, Float share) {
  return fma(share, gradient - mean, mean);
}
template <typename Float>
GRADRING_HD Float moved_from_gradient(Float mean, Float gradient, Float share) {
  return fma(gradient - mean, share - 1, gradient);
}
template <typename Float>
GRADRING_HD Float moved(Float mean, Float gradient, Float share) {
  return share < Float{0.5} ? moved_from_mean(mean, gradient, share)
                            : moved_from_gradient(mean, gradient, share);
}

// The weight after a step of `descent` (minus the learning rate) along `direction`.
template <typename Float>
GRADRING_HD Float descended(Float weight, Float direction, Float descent) {
  return fma(direction, descent, weight);
}

// SGD's buffer after a step that is not the first.
template <typename Float>
GRADRING_HD Float with_momentum(Float buffer, Float gradient, Float momentum, Float undampened) {
  return fma(gradient, undampened, buffer * momentum);
}

template <typename Float>
GRADRING_HD Float nesterov_direction(Float buffer, Float gradient, Float momentum) {
  return fma(buffer, momentum, gradient);
}

// A running mean of squares: RMSprop's, Adam's.
template <typename Float>
GRADRING_HD Float mean_square_after(Float squares, Float gradient, Float decay, Float share) {
  return fma(share * gradient, gradient, squares * decay);
}

template <typename Float>
GRADRING_HD Float adam_step(Float weight, Float mean, Float squares, Float descent,
                            Float root_correction, Float eps) {
  return weight + descent * mean / (root(squares) / root_correction + eps);
}

// Adagrad's sum of squares.
template <typename Float>
GRADRING_HD Float square_sum_after(Float squares, Float gradient) {
  return fma(gradient, gradient, squares);
}

template <typename Float>
GRADRING_HD Float adagrad_step(Float weight, Float gradient, Float squares, Float descent,
                               Float eps) {
  return weight + descent * gradient / (root(squares) + eps);
}

// torch.optim.SparseAdam's, in which nothing is fused.
template <typename Float>
GRADRING_HD Float sparse_adam_mean(Float mean, Float gradient, Float share) {
  return mean + (gradient - mean) * share;
}
template <typename Float>
GRADRING_HD Float sparse_adam_squares(Float squares, Float gradient, Float share) {
  return squares + (gradient * gradient - squares) * share;
}
template <typename Float>
GRADRING_HD Float sparse_adam_step(Float weight, Float mean, Float squares, Float descent,
                                   Float eps) {
  return weight + descent * (mean / (root(squares) + eps));
}

}  // namespace gradring::kernels
