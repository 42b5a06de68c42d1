// The launcher of update rules on rows.
#include "cuda/apply.cuh"

#include "cuda/preload.h"
#include "cuda/rows.h"
#include "kernels/update.h"

namespace gradring::cuda {
namespace {

constexpr int value_of(kernels::RuleKind kind) {
  return static_cast<int>(kind);
}
static_assert(kSumRule == value_of(kernels::RuleKind::kSum) &&
              kSgdRule == value_of(kernels::RuleKind::kSgd) &&
              kAdagradRule == value_of(kernels::RuleKind::kAdagrad) &&
              kAdamRule == value_of(kernels::RuleKind::kAdam) &&
              kAdamWRule == value_of(kernels::RuleKind::kAdamW) &&
              kSparseAdamRule == value_of(kernels::RuleKind::kSparseAdam));

bool is_wide(const void* pointer, std::uint64_t row_floats) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && row_floats % 4 == 0;
}

int fields_of(const gradring_rule& rule) {
  switch (rule.kind) {
    case kSgdRule: return rule.momentum != 0 ? 1 : 0;
    case kAdagradRule: return 1;
    case kAdamRule:
    case kAdamWRule:
    case kSparseAdamRule: return 2;
    default: return 0;
  }
}

bool is_valid(const gradring_apply_rows& call) {
  const gradring_row_slots& where = call.where;
  if ((where.slot_bytes != 4 && where.slot_bytes != 8) || where.most > GRADRING_ROW_IDS)
    return false;
  const int fields = fields_of(call.rule);
  for (int i = 0; i < GRADRING_RULE_FIELDS; ++i)
    if ((call.fields[i] != nullptr) != (i < fields)) return false;
  return fields < 2 || (call.corrections != nullptr && call.correction_count > 0);
}

template <int kRule, unsigned kWide>
int apply_with(const gradring_apply_rows& call, gradring_stream stream) {
  const std::uint64_t pieces = call.where.dim / kWide;
  ApplyWork work = {call, 0};
  while ((1u << work.lanes_log2) < kWarpLanes && (1u << work.lanes_log2) < pieces)
    ++work.lanes_log2;
  const std::uint64_t rows_each = kRowThreads >> work.lanes_log2;
  const std::uint64_t blocks = (call.where.most + rows_each - 1) / rows_each;
  return launch(&apply<kRule, kWide>, dim3(static_cast<unsigned>(blocks)), dim3(kRowThreads), 0,
                static_cast<cudaStream_t>(stream), work);
}

template <int kRule>
int apply_rule(const gradring_apply_rows& call, gradring_stream stream) {
  bool is_wide_row = is_wide(call.gradients, call.where.dim) && is_wide(call.weights, call.stride);
  for (const float* field : call.fields)
    is_wide_row = is_wide_row && (field == nullptr || is_wide(field, call.field_stride));
  return is_wide_row ? apply_with<kRule, 4>(call, stream) : apply_with<kRule, 1>(call, stream);
}

template <int... kRules>
int load_rules() {
  return load_kernels(&apply<kRules, 4>..., &apply<kRules, 1>...);
}

}  // namespace

int apply_rows(int device, const gradring_apply_rows* call, gradring_stream stream) {
  if (!is_valid(*call)) return GRADRING_GPU_BAD_CALL;
  if (call->where.most == 0 || call->where.dim == 0) return GRADRING_GPU_OK;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  switch (call->rule.kind) {
    case kSumRule: return apply_rule<kSumRule>(*call, stream);
    case kSgdRule: return apply_rule<kSgdRule>(*call, stream);
    case kAdagradRule: return apply_rule<kAdagradRule>(*call, stream);
    case kAdamRule: return apply_rule<kAdamRule>(*call, stream);
    case kAdamWRule: return apply_rule<kAdamWRule>(*call, stream);
    case kSparseAdamRule: return apply_rule<kSparseAdamRule>(*call, stream);
    default: return GRADRING_GPU_BAD_CALL;
  }
}

int load_apply_kernels() {
  return load_rules<kSumRule, kSgdRule, kAdagradRule, kAdamRule, kAdamWRule, kSparseAdamRule>();
}

}  // namespace gradring::cuda
