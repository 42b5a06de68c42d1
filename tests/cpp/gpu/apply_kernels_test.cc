// The GPU's update rules on rows, run in the block emulator: the bits that kernels/update.h gives,
// step after step; rows whose gradient is not finite stay as they are.
#include "emulator/cuda_emulation.h"
// After CUDA's names.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "cuda/rows.h"
#include "kernels/update.h"
#include "kernels/update_table.h"
#include "kernels/updater.h"
#include "support/emulated_orders.h"
#include "support/odd_floats.h"
#include "support/placed.h"

namespace gradring::testing::apply_kernels_test {
namespace {

using kernels::Rule;
using kernels::RuleKind;

constexpr std::size_t kRows = 30;

std::vector<Rule> rules() {
  std::vector<Rule> all;
  for (const RuleKind kind : {RuleKind::kSum, RuleKind::kSgd, RuleKind::kAdagrad, RuleKind::kAdam,
                              RuleKind::kAdamW, RuleKind::kSparseAdam}) {
    Rule plain;
    plain.kind = kind;
    plain.lr = 0.05;
    all.push_back(plain);
    Rule full = plain;
    full.momentum = 0.9;
    full.dampening = 0.1;
    full.weight_decay = 0.01;
    full.lr_decay = 0.1;
    full.initial_accumulator = 0.25;
    full.beta1 = 0.3;  // A share of the mean above a half.
    full.beta2 = 0.97;
    full.eps = 0.125;
    full.clip_value = 1.5;
    all.push_back(full);
    full.dampening = 0;
    full.nesterov = true;
    all.push_back(full);
  }
  return all;
}

gradring_rule as_call(const Rule& rule) {
  return {static_cast<std::int32_t>(rule.kind),
          rule.nesterov ? 1 : 0,
          rule.lr_decay,
          rule.weight_decay,
          static_cast<float>(rule.clip_value),
          static_cast<float>(rule.momentum),
          static_cast<float>(1 - rule.dampening),
          static_cast<float>(1 - rule.beta1),
          static_cast<float>(rule.beta2),
          static_cast<float>(1 - rule.beta2),
          static_cast<float>(rule.eps)};
}

bool counts_steps_per_row(const Rule& rule) {
  return rule.kind != RuleKind::kSparseAdam;
}

// A table on the CPU and its copy on the GPU: rows of weights, then their fields, side by side.
class Tables {
 public:
  Tables(const Rule& rule, std::size_t dim, std::size_t offset)
      : rule_(rule),
        dim_(dim),
        width_(dim + kernels::state_floats(rule, dim)),
        cpu_(floats(Floats::kNormal, kRows * width_, 3)),
        steps_(kRows),
        gpu_steps_(kRows),
        updater_(rule, dim),
        gpu_(initial(), offset) {
    if (is_adam())
      for (const kernels::BiasCorrection& each : kernels::bias_corrections(rule))
        corrections_.push_back({each.mean, each.root_of_square});
  }

  // One step of some rows, the `number`-th of the table.
  void step(std::uint64_t number, std::mt19937& dice) {
    std::vector<std::uint32_t> slots;
    for (std::uint32_t row = 0; row <= kRows; ++row)  // The last is missing.
      if (dice() % 4 != 0) slots.push_back(row);
    std::shuffle(slots.begin(), slots.end(), dice);
    auto gradients =
        floats(Floats::kNormal, slots.size() * dim_, static_cast<std::uint32_t>(dice()));
    std::uint64_t refused = 0;
    std::uint64_t missing = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      constexpr float kBad[] = {std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::quiet_NaN()};
      if (dice() % 8 == 0) gradients[i * dim_ + dice() % dim_] = kBad[dice() % 2];
      step_on_cpu(number, slots[i], &gradients[i * dim_], refused, missing);
    }
    std::uint64_t gpu_refused = 0;
    std::uint64_t gpu_missing = 0;
    Placed<float> from(gradients, dice() % 2 * 4);
    gradring_apply_rows call = {};
    call.where = {slots.data(), 4,           static_cast<std::uint32_t>(dim_), kRows, slots.size(),
                  nullptr,      &gpu_missing};
    call.rule = as_call(rule_);
    const gradring_rule_step now = {rule_.lr, number};
    call.step = dice() % 2 == 0 ? now : gradring_rule_step{77, 77};
    call.step_at = call.step.step == number ? nullptr : &now;
    call.corrections = corrections_.data();
    call.correction_count = corrections_.size();
    call.gradients = from.data();
    call.weights = gpu_.data();
    call.stride = call.field_stride = width_;
    kernels::StateField fields[kernels::kMaxStateFields];
    const std::size_t count = kernels::state_fields(rule_, dim_, fields);
    for (std::size_t i = 0; i < count; ++i) call.fields[i] = gpu_.data() + (i + 1) * dim_;
    call.steps = counts_steps_per_row(rule_) ? gpu_steps_.data() : nullptr;
    call.refused = &gpu_refused;
    REQUIRE(cuda::apply_rows(0, &call, nullptr) == 0);
    CHECK(gpu_refused == refused);
    CHECK(gpu_missing == missing);
  }

  void check_equal() const {
    CHECK(same_bits(gpu_.values(), cpu_));
    CHECK(gpu_.is_intact());
    if (counts_steps_per_row(rule_)) CHECK(gpu_steps_ == steps_);
  }

 private:
  bool is_adam() const {
    return rule_.kind == RuleKind::kAdam || rule_.kind == RuleKind::kAdamW ||
           rule_.kind == RuleKind::kSparseAdam;
  }

  std::vector<float> initial() {
    for (std::size_t row = 0; row < kRows; ++row)
      kernels::initialize_state(rule_, dim_, &cpu_[row * width_] + dim_);
    return cpu_;
  }

  void step_on_cpu(std::uint64_t number, std::uint32_t slot, const float* gradient,
                   std::uint64_t& refused, std::uint64_t& missing) {
    if (slot >= kRows) {
      ++missing;
      return;
    }
    if (!kernels::is_finite(gradient, dim_)) {
      ++refused;
      return;
    }
    std::vector<float> scratch(gradient, gradient + dim_);
    float* const row = &cpu_[slot * width_];
    ++steps_[slot];
    updater_.update(counts_steps_per_row(rule_) ? steps_[slot] : number, row, row + dim_,
                    scratch.data());
  }

  Rule rule_;
  std::size_t dim_;
  std::size_t width_;
  std::vector<float> cpu_;
  std::vector<std::uint32_t> steps_;
  std::vector<std::uint32_t> gpu_steps_;
  kernels::Updater<float> updater_;
  std::vector<gradring_bias_correction> corrections_;
  Placed<float> gpu_;
};

TEST_CASE("apply: every rule's bits, for rows of any width") {
  std::mt19937 dice(1);
  in_every_order([&] {
    for (const Rule& rule : rules()) {
      CAPTURE(kernels::name(rule.kind));
      for (const std::size_t dim : {1, 2, 4, 5, 16, 31, 36, 64, 132}) {
        if (dice() % 2 == 0) continue;
        CAPTURE(dim);
        Tables tables(rule, dim, dice() % 2 * 4);
        for (std::uint64_t step = 1; step <= 4; ++step) tables.step(step, dice);
        tables.check_equal();
      }
    }
  });
}

TEST_CASE("apply: many steps, beyond those that Adam's corrections are listed for") {
  std::mt19937 dice(2);
  Rule rule;
  rule.kind = RuleKind::kAdam;
  rule.beta1 = 0.1;
  rule.beta2 = 0.2;
  REQUIRE(kernels::bias_corrections(rule).size() < 40);
  Tables tables(rule, 8, 0);
  for (std::uint64_t step = 1; step <= 80; ++step) tables.step(step, dice);
  tables.check_equal();
}

TEST_CASE("bias corrections end where both are 1, or are refused") {
  Rule rule;
  rule.kind = RuleKind::kAdam;
  const auto all = kernels::bias_corrections(rule);
  REQUIRE(all.size() > 30'000);
  CHECK(all.back().mean == 1);
  CHECK(all.back().root_of_square == 1);
  CHECK(all[all.size() - 2].root_of_square < 1);
  rule.beta2 = 1 - 1e-12;
  CHECK_THROWS_AS(kernels::bias_corrections(rule, 1000), InvalidArgument);
}

TEST_CASE("apply: a call without what its rule needs is refused") {
  gradring_apply_rows call = {};
  call.where.slot_bytes = 4;
  call.rule.kind = static_cast<std::int32_t>(RuleKind::kAdagrad);
  CHECK(cuda::apply_rows(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  float field = 0;
  call.fields[0] = &field;
  CHECK(cuda::apply_rows(0, &call, nullptr) == 0);  // Of no rows.
  call.rule.kind = static_cast<std::int32_t>(RuleKind::kFtrl);
  CHECK(cuda::apply_rows(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
}

}  // namespace
}  // namespace gradring::testing::apply_kernels_test
