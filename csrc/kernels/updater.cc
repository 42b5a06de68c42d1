// Steps: picks the kernels for this CPU, works out the scalars of a step, cuts long rows in blocks.
#include "kernels/updater.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace gradring::kernels {
namespace {

// Floats that a kernel, which may pass over them several times, gets at once: they and their state
// stay in the first cache.
constexpr std::size_t kBlock = 1024;

struct UsableUpdates {
  const UpdateTable* tables[2] = {&kBaselineUpdates};
  std::size_t count = 1;

  UsableUpdates() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      tables[count++] = &kAvx2Updates;
#endif
  }
};

const UpdateTable& best_table() {
  static const UpdateTable& table = *usable_update_tables().back();
  return table;
}

template <typename Float>
UpdateKernel<Float> kernel_of(const UpdateTable& table, RuleKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  if constexpr (sizeof(Float) == sizeof(float)) {
    return table.floats[at];
  } else {
    return table.doubles[at];
  }
}

// Adam's and AdamW's, in double and in the order of Python's expressions.
template <typename Float>
void correct_bias(const Rule& rule, std::uint64_t step, Float& descent, Float& root_correction) {
  const BiasCorrection by = bias_correction(rule, step);
  if (rule.kind == RuleKind::kSparseAdam) {
    descent = static_cast<Float>(-(rule.lr * by.root_of_square / by.mean));
    root_correction = 1;
  } else {
    descent = static_cast<Float>(-(rule.lr / by.mean));
    root_correction = static_cast<Float>(by.root_of_square);
  }
}

template <typename Float>
void of_step(const Rule& rule, std::uint64_t step, Float& descent, Float& root_correction) {
  const auto number = static_cast<double>(step);
  root_correction = 1;
  if (is_adam(rule.kind)) {
    correct_bias(rule, step, descent, root_correction);
  } else if (rule.kind == RuleKind::kAdagrad) {
    descent = static_cast<Float>(-(rule.lr / (1 + (number - 1) * rule.lr_decay)));
  } else {
    descent = static_cast<Float>(-rule.lr);
  }
}

// All but what depends on the step.
template <typename Float>
Scalars<Float> scalars_of(const Rule& rule) {
  const auto rounded = [](double value) { return static_cast<Float>(value); };
  Scalars<Float> s;
  s.clip_value = rounded(rule.clip_value);
  s.clip_norm = rule.clip_norm;
  s.momentum = rounded(rule.momentum);
  s.undampened = rounded(1 - rule.dampening);
  s.is_nesterov = rule.nesterov;
  s.is_centered = rule.centered;
  s.eps = rounded(rule.eps);
  s.lr = rounded(rule.lr);
  s.l1 = rounded(rule.l1);
  s.l2 = rounded(rule.l2);
  s.beta = rounded(rule.beta);
  if (rule.kind == RuleKind::kRmsProp) {
    s.mean_weight = s.square_weight = rounded(1 - rule.alpha);
    s.square_decay = rounded(rule.alpha);
  } else {
    s.mean_weight = rounded(1 - rule.beta1);
    s.square_weight = rounded(1 - rule.beta2);
    s.square_decay = rounded(rule.beta2);
  }
  switch (rule.kind) {
    case RuleKind::kSgd:
    case RuleKind::kAdagrad:
    case RuleKind::kRmsProp:
    case RuleKind::kAdam:
    case RuleKind::kRowWiseAdagrad: s.weight_decay = rounded(rule.weight_decay); break;
    case RuleKind::kAdamW:
    case RuleKind::kRowWiseAdam: s.shrink = rounded(1 - rule.lr * rule.weight_decay); break;
    default: break;
  }
  return s;
}

// Whether every element is changed without a look at the others of its row.
bool is_element_wise(const Rule& rule) {
  return rule.kind != RuleKind::kRowWiseAdagrad && rule.kind != RuleKind::kRowWiseAdam &&
         rule.clip_norm == 0;
}

template <typename Float>
void run(UpdateKernel<Float> kernel, const Scalars<Float>& scalars, std::size_t block,
         std::size_t dim, Float* weights, Float* const* fields, Float* gradient) {
  if (dim <= block) {
    kernel(scalars, dim, weights, fields, gradient);
    return;
  }
  for (std::size_t at = 0; at < dim; at += block) {
    Float* cut[kMaxStateFields] = {};
    for (std::size_t i = 0; i < kMaxStateFields; ++i)
      if (fields[i] != nullptr) cut[i] = fields[i] + at;
    kernel(scalars, std::min(block, dim - at), weights + at, cut, gradient + at);
  }
}

}  // namespace

BiasCorrection bias_correction(const Rule& rule, std::uint64_t step) {
  const auto number = static_cast<double>(step);
  const double mean = 1 - std::pow(rule.beta1, number);
  const double square = 1 - std::pow(rule.beta2, number);
  const bool takes_root = rule.kind == RuleKind::kSparseAdam;
  return {mean, takes_root ? std::sqrt(square) : std::pow(square, 0.5)};
}

std::vector<BiasCorrection> bias_corrections(const Rule& rule, std::size_t most) {
  std::vector<BiasCorrection> all;
  do {
    if (all.size() == most)
      throw InvalidArgument(str(name(rule.kind), ": betas of ", rule.beta1, " and ", rule.beta2,
                                " matter for more than ", most, " steps"));
    all.push_back(bias_correction(rule, all.size() + 1));
  } while (all.back().mean != 1 || all.back().root_of_square != 1);
  return all;
}

std::span<const UpdateTable* const> usable_update_tables() {
  static const UsableUpdates usable;
  return {usable.tables, usable.count};
}

bool is_finite(const float* values, std::size_t count) {
  return best_table().is_finite(values, count);
}

template <typename Float>
Scalars<Float> step_scalars(const Rule& rule, std::uint64_t step) {
  auto scalars = scalars_of<Float>(rule);
  of_step(rule, step, scalars.descent, scalars.root_correction);
  scalars.is_first_step = step == 1;
  return scalars;
}

void update_row(const Rule& rule, std::uint64_t step, std::size_t dim, float* weights, float* state,
                float* gradient) {
  const auto scalars = step_scalars<float>(rule, step);
  StateField fields[kMaxStateFields];
  float* pointers[kMaxStateFields] = {};
  const std::size_t count = state_fields(rule, dim, fields);
  for (std::size_t i = 0; i < count; ++i) {
    pointers[i] = state;
    state += fields[i].floats;
  }
  run(kernel_of<float>(best_table(), rule.kind), scalars, is_element_wise(rule) ? kBlock : dim, dim,
      weights, pointers, gradient);
}

template <typename Float>
Updater<Float>::Updater(const Rule& rule, std::size_t dim) : rule_(rule), dim_(dim) {
  require_valid(rule);
  kernel_ = kernel_of<Float>(best_table(), rule.kind);
  scalars_ = scalars_of<Float>(rule);
  depends_on_step_ = is_adam(rule.kind) || (rule.kind == RuleKind::kAdagrad && rule.lr_decay != 0);
  of_step(rule, 1, scalars_.descent, scalars_.root_correction);
  step_ = 1;
  block_ = is_element_wise(rule) ? kBlock : dim;
  StateField fields[kMaxStateFields];
  const std::size_t count = state_fields(rule, dim, fields);
  std::size_t offset = 0;
  for (std::size_t i = 0; i < count; ++i) {
    offsets_[i] = offset;
    offset += fields[i].floats;
  }
}

template <typename Float>
void Updater<Float>::set_step(std::uint64_t step) {
  step_ = step;
  OfStep& known = remembered_[step % kRemembered];
  if (known.step != step) {
    known.step = step;
    of_step(rule_, step, known.descent, known.root_correction);
  }
  scalars_.descent = known.descent;
  scalars_.root_correction = known.root_correction;
}

template <typename Float>
void Updater<Float>::update_fields(std::uint64_t step, Float* weights, Float* const* fields,
                                   Float* gradient) {
  if (depends_on_step_ && step != step_) set_step(step);
  scalars_.is_first_step = step == 1;
  run(kernel_, scalars_, block_, dim_, weights, fields, gradient);
}

template <typename Float>
void Updater<Float>::update(std::uint64_t step, Float* weights, Float* state, Float* gradient) {
  Float* const fields[kMaxStateFields] = {state + offsets_[0], state + offsets_[1],
                                          state + offsets_[2], state + offsets_[3]};
  update_fields(step, weights, fields, gradient);
}

template <typename Float>
void update_dense(const Rule& rule, std::uint64_t step, std::size_t rows, std::size_t dim,
                  Float* weights, Float* const* fields, const Float* gradient) {
  // Rows that do not matter are taken for one, which is then cut anew.
  const bool is_free = is_element_wise(rule);
  const std::size_t count = rows * dim;
  const std::size_t length = is_free ? std::min(count, kBlock) : dim;
  if (count == 0) return;
  std::vector<Float> scratch(length);
  StateField layout[kMaxStateFields];
  const std::size_t field_count = state_fields(rule, length, layout);
  Float* at_fields[kMaxStateFields] = {};
  std::copy_n(fields, field_count, at_fields);
  Updater<Float> updater(rule, length);
  Updater<Float> last(rule, count % length);
  for (std::size_t at = 0; at < count; at += length) {
    const bool is_whole = count - at >= length;
    std::copy_n(gradient + at, is_whole ? length : count - at, scratch.data());
    (is_whole ? updater : last).update_fields(step, weights + at, at_fields, scratch.data());
    for (std::size_t i = 0; i < field_count; ++i) at_fields[i] += layout[i].floats;
  }
}

template Scalars<float> step_scalars(const Rule&, std::uint64_t);
template Scalars<double> step_scalars(const Rule&, std::uint64_t);

template void update_dense(const Rule&, std::uint64_t, std::size_t, std::size_t, float*,
                           float* const*, const float*);
template void update_dense(const Rule&, std::uint64_t, std::size_t, std::size_t, double*,
                           double* const*, const double*);

template class Updater<float>;
template class Updater<double>;

}  // namespace gradring::kernels
