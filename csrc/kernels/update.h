// Update rules: how a gradient changes a row of weights and the state beside it. One copy of the
// arithmetic for sparse rows and for dense tables, in the order of operations of torch.optim's
// single-tensor CPU path. Pure functions on pointers, callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradring::kernels {

// The values are part of the wire format and of checkpoints: append, never renumber.
enum class RuleKind : std::uint8_t {
  kSum = 0,  // weight += gradient: counters, GEO's deltas.
  kSgd = 1,
  kAdagrad = 2,
  kRmsProp = 3,
  kAdam = 4,  // The number of steps is the row's own on a sparse table (as if every row were a
              // parameter), the table's on a dense one.
  kAdamW = 5,
  kSparseAdam = 6,  // torch.optim.SparseAdam: the number of steps is the table's.
  kRowWiseAdagrad =
      7,             // One accumulator a row: the mean of the squared gradient (FBGEMM, TorchRec).
  kRowWiseAdam = 8,  // First moment per element, one second moment a row (FBGEMM's partial
                     // row-wise Adam).
  kFtrl = 9,         // FTRL-Proximal (McMahan et al. 2013).
};
inline constexpr std::size_t kRuleKindCount = 10;
std::string_view name(RuleKind kind);  // "sum", "sgd", ...

// Plain values; what a rule does not use is ignored. Doubles, as Python's: torch computes the
// scalars of a step in double and rounds them to float once.
struct Rule {
  RuleKind kind = RuleKind::kSum;
  bool nesterov = false;
  bool centered = false;  // kRmsProp.
  double lr = 1;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  double lr_decay = 0;             // kAdagrad.
  double initial_accumulator = 0;  // kAdagrad, kRowWiseAdagrad, kFtrl.
  double alpha = 0.99;             // kRmsProp.
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double l1 = 0;  // kFtrl.
  double l2 = 0;
  double beta = 0;        // kFtrl: added to the root of the accumulator.
  double clip_value = 0;  // Gradients are cut to [-clip_value, clip_value]; 0: not at all.
  double clip_norm = 0;   // A row (or a dense table's part) is scaled down to this norm; 0: not.

  friend bool operator==(const Rule&, const Rule&) = default;
};

// One of that family: its first steps are corrected for bias.
inline bool is_adam(RuleKind kind) {
  return kind == RuleKind::kAdam || kind == RuleKind::kAdamW || kind == RuleKind::kSparseAdam ||
         kind == RuleKind::kRowWiseAdam;
}

// Throws InvalidArgument that names the rule and the value, in the words of torch.optim's checks.
void require_valid(const Rule& rule);

// The same of a rule whose numbers have no place in float32: one would be infinite there, or 0 and
// so mean something else.
void require_float32(const Rule& rule);

// Floats of state beside `dim` weights. Their order is fixed: it is what checkpoints hold.
std::size_t state_floats(const Rule& rule, std::size_t dim);
// Writes a new row's state.
void initialize_state(const Rule& rule, std::size_t dim, float* state);
// "exp_avg", "exp_avg_sq": torch's name of each run of floats in the state and its length for
// `dim` (dim, or 1 for one a row), in order; count of runs returned.
struct StateField {
  std::string_view name;
  std::size_t floats = 0;
  double initial = 0;  // What they start as.
};
inline constexpr std::size_t kMaxStateFields = 4;
std::size_t state_fields(const Rule& rule, std::size_t dim, StateField (&fields)[kMaxStateFields]);

bool is_finite(const float* values, std::size_t count);

// One step of one row. `step` counts from 1 and is this step's: the row's own, but the table's for
// kSparseAdam. `gradient` is scratch: it is written (clipping, weight decay). Everything is finite,
// and nothing overlaps. For many rows updater.h has a faster form.
void update_row(const Rule& rule, std::uint64_t step, std::size_t dim, float* weights, float* state,
                float* gradient);

}  // namespace gradring::kernels
