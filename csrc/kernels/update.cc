// What a rule is: its name, what it may be given, its state. Its steps are in updater.cc.
#include "kernels/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace gradring::kernels {
namespace {

void require(bool holds, const Rule& rule, const char* what, double value) {
  if (!holds) throw InvalidArgument(str(name(rule.kind), ": invalid ", what, ": ", value));
}

void require_in_float32(bool holds, const Rule& rule, const char* what, double value) {
  if (!holds)
    throw InvalidArgument(
        str(name(rule.kind), ": ", what, " ", value, " does not fit into float32"));
}

struct Number {
  const char* what;
  double value;
  bool is_float = true;  // In tables of float32; a few are used in double there too.
};

// Those that may not be negative.
std::array<Number, 12> numbers_of(const Rule& rule) {
  return {{{"learning rate", rule.lr},
           {"momentum value", rule.momentum},
           {"weight_decay value", rule.weight_decay},
           {"lr_decay value", rule.lr_decay, false},
           {"initial_accumulator_value value", rule.initial_accumulator},
           {"alpha value", rule.alpha},
           {"epsilon value", rule.eps},
           {"l1 value", rule.l1},
           {"l2 value", rule.l2},
           {"beta value", rule.beta},
           {"clip_value", rule.clip_value},
           {"clip_norm", rule.clip_norm, false}}};
}

}  // namespace

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
  for (const auto& [what, value, is_float] : numbers_of(rule))
    require(value >= 0 && std::isfinite(value), rule, what, value);
  require(std::isfinite(rule.dampening), rule, "dampening value", rule.dampening);
  require(rule.beta1 >= 0 && rule.beta1 < 1, rule, "beta parameter at index 0", rule.beta1);
  require(rule.beta2 >= 0 && rule.beta2 < 1, rule, "beta parameter at index 1", rule.beta2);
  if (rule.kind == RuleKind::kSgd && rule.nesterov && (rule.momentum == 0 || rule.dampening != 0))
    throw InvalidArgument("sgd: Nesterov momentum requires a momentum and zero dampening");
  if (rule.kind == RuleKind::kSparseAdam) require(rule.eps > 0, rule, "epsilon value", rule.eps);
  if (rule.kind == RuleKind::kFtrl) require(rule.lr > 0, rule, "learning rate", rule.lr);
}

void require_float32(const Rule& rule) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (const auto& [what, value, is_float] : numbers_of(rule))
    require_in_float32(!is_float || value <= kLargest, rule, what, value);
  require_in_float32(std::abs(rule.dampening) <= kLargest, rule, "dampening value", rule.dampening);
  // Adam's first step is lr / (1 - beta1) long before anything shortens it.
  require_in_float32(!is_adam(rule.kind) || rule.lr / (1 - rule.beta1) <= kLargest, rule,
                     "learning rate", rule.lr);
  constexpr double kSmallest = std::numeric_limits<float>::min();  // Of those with all digits.
  require_in_float32(rule.clip_value == 0 || rule.clip_value >= kSmallest, rule, "clip_value",
                     rule.clip_value);
  require_in_float32(rule.kind != RuleKind::kFtrl || rule.lr >= kSmallest, rule, "learning rate",
                     rule.lr);
}

std::size_t state_fields(const Rule& rule, std::size_t dim, StateField (&fields)[kMaxStateFields]) {
  std::size_t count = 0;
  const auto add = [&](std::string_view name, std::size_t floats, double initial = 0) {
    fields[count++] = {name, floats, initial};
  };
  switch (rule.kind) {
    case RuleKind::kSum: break;
    case RuleKind::kSgd:
      if (rule.momentum != 0) add("momentum_buffer", dim);
      break;
    case RuleKind::kAdagrad: add("sum", dim, rule.initial_accumulator); break;
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
    case RuleKind::kRowWiseAdagrad: add("sum", 1, rule.initial_accumulator); break;
    case RuleKind::kRowWiseAdam:
      add("exp_avg", dim);
      add("exp_avg_sq", 1);
      break;
    case RuleKind::kFtrl:
      add("sum", dim, rule.initial_accumulator);
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
    std::fill_n(state, fields[i].floats, static_cast<float>(fields[i].initial));
    state += fields[i].floats;
  }
}

}  // namespace gradring::kernels
