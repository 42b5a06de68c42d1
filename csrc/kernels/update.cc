// What a rule is: its name, what it may be given, its state, and the scalars of a step. The
// arithmetic is in update_body.h.
#include "kernels/update.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/update_table.h"
#include "kernels/updater.h"

namespace gradring::kernels {
namespace {

struct UsableTables {
  const UpdateTable* tables[2] = {&kBaselineUpdates};
  std::size_t count = 1;

  UsableTables() {
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
void correct_bias(const Rule& rule, double step, Float& descent, Float& root_correction) {
  const double correction1 = 1 - std::pow(rule.beta1, step);
  const double correction2 = 1 - std::pow(rule.beta2, step);
  if (rule.kind == RuleKind::kSparseAdam) {
    descent = static_cast<Float>(-(rule.lr * std::sqrt(correction2) / correction1));
    root_correction = 1;
  } else {
    descent = static_cast<Float>(-(rule.lr / correction1));
    root_correction = static_cast<Float>(std::pow(correction2, 0.5));
  }
}

bool is_adam(RuleKind kind) {
  return kind == RuleKind::kAdam || kind == RuleKind::kAdamW || kind == RuleKind::kSparseAdam ||
         kind == RuleKind::kRowWiseAdam;
}

template <typename Float>
void of_step(const Rule& rule, std::uint64_t step, Float& descent, Float& root_correction) {
  const auto number = static_cast<double>(step);
  root_correction = 1;
  if (is_adam(rule.kind)) {
    correct_bias(rule, number, descent, root_correction);
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

void require(bool holds, const Rule& rule, const char* what, double value) {
  if (!holds) throw InvalidArgument(str(name(rule.kind), ": invalid ", what, ": ", value));
}

}  // namespace

std::span<const UpdateTable* const> usable_update_tables() {
  static const UsableTables usable;
  return {usable.tables, usable.count};
}

std::string_view name(RuleKind kind) {
  switch (kind) {
    case RuleKind::kSum: return "sum";
    case RuleKind::kSgd: return "sgd";
    case RuleKind::kAdagrad: return "adagrad";
    case RuleKind::kRmsProp: return "rmsprop";
    case RuleKind::kAdam: return "adam";
    case RuleKind::kAdamW: return "adamw";
    case RuleKind::kSparseAdam: return "sparse_adam";
    case RuleKind::kRowWiseAdagrad: return "row_wise_adagrad";
    case RuleKind::kRowWiseAdam: return "row_wise_adam";
    case RuleKind::kFtrl: return "ftrl";
  }
  return "unknown";
}

void require_valid(const Rule& rule) {
  if (static_cast<std::size_t>(rule.kind) >= kRuleKindCount)
    throw InvalidArgument(str("unknown update rule ", static_cast<int>(rule.kind)));
  struct {
    const char* what;
    double value;
  } const at_least_zero[] = {
      {"learning rate", rule.lr},
      {"momentum value", rule.momentum},
      {"weight_decay value", rule.weight_decay},
      {"lr_decay value", rule.lr_decay},
      {"initial_accumulator_value value", rule.initial_accumulator},
      {"alpha value", rule.alpha},
      {"epsilon value", rule.eps},
      {"l1 value", rule.l1},
      {"l2 value", rule.l2},
      {"beta value", rule.beta},
      {"clip_value", rule.clip_value},
      {"clip_norm", rule.clip_norm},
  };
  for (const auto& [what, value] : at_least_zero)
    require(value >= 0 && std::isfinite(value), rule, what, value);
  require(std::isfinite(rule.dampening), rule, "dampening value", rule.dampening);
  require(rule.beta1 >= 0 && rule.beta1 < 1, rule, "beta parameter at index 0", rule.beta1);
  require(rule.beta2 >= 0 && rule.beta2 < 1, rule, "beta parameter at index 1", rule.beta2);
  if (rule.kind == RuleKind::kSgd && rule.nesterov && (rule.momentum == 0 || rule.dampening != 0))
    throw InvalidArgument("sgd: Nesterov momentum requires a momentum and zero dampening");
  if (rule.kind == RuleKind::kSparseAdam) require(rule.eps > 0, rule, "epsilon value", rule.eps);
  if (rule.kind == RuleKind::kFtrl) require(rule.lr > 0, rule, "learning rate", rule.lr);
}

std::size_t state_fields(const Rule& rule, std::size_t dim, StateField (&fields)[kMaxStateFields]) {
  std::size_t count = 0;
  const auto add = [&](std::string_view name, std::size_t floats) {
    fields[count++] = {name, floats};
  };
  switch (rule.kind) {
    case RuleKind::kSum: break;
    case RuleKind::kSgd:
      if (rule.momentum != 0) add("momentum_buffer", dim);
      break;
    case RuleKind::kAdagrad: add("sum", dim); break;
    case RuleKind::kRmsProp:
      add("square_avg", dim);
      if (rule.centered) add("grad_avg", dim);
      if (rule.momentum != 0) add("momentum_buffer", dim);
      break;
    case RuleKind::kAdam:
    case RuleKind::kAdamW:
    case RuleKind::kSparseAdam:
      add("exp_avg", dim);
      add("exp_avg_sq", dim);
      break;
    case RuleKind::kRowWiseAdagrad: add("sum", 1); break;
    case RuleKind::kRowWiseAdam:
      add("exp_avg", dim);
      add("exp_avg_sq", 1);
      break;
    case RuleKind::kFtrl:
      add("sum", dim);
      add("linear", dim);
      break;
  }
  return count;
}

std::size_t state_floats(const Rule& rule, std::size_t dim) {
  StateField fields[kMaxStateFields];
  std::size_t floats = 0;
  const std::size_t count = state_fields(rule, dim, fields);
  for (std::size_t i = 0; i < count; ++i) floats += fields[i].floats;
  return floats;
}

void initialize_state(const Rule& rule, std::size_t dim, float* state) {
  StateField fields[kMaxStateFields];
  const std::size_t count = state_fields(rule, dim, fields);
  for (std::size_t i = 0; i < count; ++i) {
    const bool accumulates = fields[i].name == "sum";
    std::fill_n(state, fields[i].floats,
                accumulates ? static_cast<float>(rule.initial_accumulator) : 0.0F);
    state += fields[i].floats;
  }
}

bool is_finite(const float* values, std::size_t count) {
  return best_table().is_finite(values, count);
}

void update_row(const Rule& rule, std::uint64_t step, std::size_t dim, float* weights, float* state,
                float* gradient) {
  auto scalars = scalars_of<float>(rule);
  of_step(rule, step, scalars.descent, scalars.root_correction);
  scalars.is_first_step = step == 1;
  StateField fields[kMaxStateFields];
  float* pointers[kMaxStateFields] = {};
  const std::size_t count = state_fields(rule, dim, fields);
  for (std::size_t i = 0; i < count; ++i) {
    pointers[i] = state;
    state += fields[i].floats;
  }
  kernel_of<float>(best_table(), rule.kind)(scalars, dim, weights, pointers, gradient);
}

template <typename Float>
Updater<Float>::Updater(const Rule& rule, std::size_t dim) : rule_(rule), dim_(dim) {
  require_valid(rule);
  kernel_ = kernel_of<Float>(best_table(), rule.kind);
  scalars_ = scalars_of<Float>(rule);
  depends_on_step_ = is_adam(rule.kind) || (rule.kind == RuleKind::kAdagrad && rule.lr_decay != 0);
  of_step(rule, 1, scalars_.descent, scalars_.root_correction);
  step_ = 1;
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
  kernel_(scalars_, dim_, weights, fields, gradient);
}

template <typename Float>
void Updater<Float>::update(std::uint64_t step, Float* weights, Float* state, Float* gradient) {
  Float* const fields[kMaxStateFields] = {state + offsets_[0], state + offsets_[1],
                                          state + offsets_[2], state + offsets_[3]};
  update_fields(step, weights, fields, gradient);
}

template class Updater<float>;
template class Updater<double>;

}  // namespace gradring::kernels
