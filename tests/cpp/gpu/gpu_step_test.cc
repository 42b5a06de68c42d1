// A step on a GPU, its gradient being the average of k vectors, gives the bits that kernels::reduce
// and then kernels::update_dense give. The kernels run in the block emulator, or on a GPU
// (support/gpu_memory.h).
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/reduce.h"
#include "kernels/updater.h"
#include "support/gpu_memory.h"

namespace gradring::gpu_step_test {
namespace {

using namespace gpu_test;
using kernels::Rule;
using kernels::RuleKind;

gradring_step_scalars scalars_of(const Rule& rule, std::uint64_t step) {
  const auto s = kernels::step_scalars<float>(rule, step);
  return {s.descent,      s.root_correction,
          s.clip_value,   s.weight_decay,
          s.shrink,       s.momentum,
          s.undampened,   s.mean_weight,
          s.square_decay, s.square_weight,
          s.eps,          s.is_first_step,
          s.is_nesterov,  {}};
}

struct StepCase {
  Rule rule;
  unsigned sources = 2;
  std::size_t count = 3000;
  std::size_t shift = 0;  // In floats.
  float scale = 1;
  bool is_tame = true;  // Else there are infinities and NaNs, whose signs are not compared.
};

template <typename From>
std::vector<float> average_of(const std::vector<std::vector<typename From::Item>>& sources,
                              const StepCase& test) {
  std::vector<std::vector<float>> wide(sources.size());
  std::vector<const std::byte*> pointers;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (const auto item : sources[s]) wide[s].push_back(static_cast<float>(value_of<From>(item)));
    pointers.push_back(reinterpret_cast<const std::byte*>(wide[s].data()));
  }
  std::vector<float> gradient(test.count);
  kernels::reduce(reinterpret_cast<std::byte*>(gradient.data()), pointers, test.count,
                  {DType::kFloat32, ReduceOp::kAvg, kernels::Fold::kLeft, test.sources});
  for (float& value : gradient) value *= test.scale;
  return gradient;
}

std::vector<float> with_one_nan(std::vector<float> values) {
  for (float& value : values) value = item_of<Float32>(value);
  return values;
}

// Both sides' weights and fields, over some steps.
template <typename From, typename Copy>
void check_steps(const StepCase& test) {
  kernels::StateField layout[kernels::kMaxStateFields];
  const std::size_t field_count = kernels::state_fields(test.rule, test.count, layout);
  auto weights = random_items<Float32>(test.count, 1, true);
  std::vector<std::vector<float>> fields(field_count, std::vector<float>(test.count));
  const std::size_t shift = 4 * test.shift % 16;
  const Array<float> there(weights, shift);
  std::vector<Array<float>> fields_there;
  for (const auto& field : fields) fields_there.emplace_back(field, shift);
  const Array<std::uint16_t> copy(std::vector<std::uint16_t>(test.count), 2 * test.shift % 16);
  const Array<float> scale(std::vector<float>{test.scale});

  for (std::uint64_t step = 1; step <= 3; ++step) {
    std::vector<std::vector<typename From::Item>> gradients;
    std::vector<Array<typename From::Item>> sources;
    gradring_step call = {};
    for (unsigned s = 0; s < test.sources; ++s) {
      gradients.push_back(random_items<From>(test.count, 10 * step + s, test.is_tame));
      sources.emplace_back(gradients[s], test.shift * sizeof(typename From::Item) % 16);
      call.fold.sources[s] = sources[s].data();
    }
    const Array<gradring_step_scalars> scalars(std::vector{scalars_of(test.rule, step)});
    call.fold.source_count = call.fold.divisor = test.sources;
    call.fold.from = static_cast<int>(kDTypeOf<From>);
    call.fold.scale = test.scale == 1 ? nullptr : scale.data();
    call.fold.count = test.count;
    call.weights = there.data();
    for (std::size_t f = 0; f < field_count; ++f) call.fields[f] = fields_there[f].data();
    call.copy = step == 2 ? nullptr : copy.data();
    call.copy_dtype = static_cast<int>(kDTypeOf<Copy>);
    call.scalars = scalars.data();
    const auto& streaming = Device::get().streaming();
    const auto run = test.rule.kind == RuleKind::kSgd ? streaming.sgd : streaming.adam;
    REQUIRE(run(0, &call, Device::get().stream()) == 0);

    const auto average = average_of<From>(gradients, test);
    float* pointers[kernels::kMaxStateFields] = {};
    for (std::size_t f = 0; f < field_count; ++f) pointers[f] = fields[f].data();
    kernels::update_dense(test.rule, step, 1, test.count, weights.data(), pointers, average.data());
  }
  CAPTURE(test.sources);
  CAPTURE(test.count);
  CAPTURE(name(test.rule.kind));
  if (!test.is_tame) {
    CHECK(is_same(with_one_nan(there.read()), with_one_nan(weights)));
    return;
  }
  CHECK(is_same(there.read(), weights));
  for (std::size_t f = 0; f < field_count; ++f) CHECK(is_same(fields_there[f].read(), fields[f]));
  std::vector<std::uint16_t> rounded;
  for (const float weight : weights) rounded.push_back(item_of<Copy>(weight));
  CHECK(is_same(copy.read(), rounded));
}

template <typename From, typename Copy>
void check_rule(const Rule& rule) {
  for (unsigned k = 1; k <= 9; ++k)
    check_steps<From, Copy>({.rule = rule, .sources = k, .count = 1030});
  for (const std::size_t count : {1, 3, 4, 255, 8192, 8197})
    check_steps<From, Copy>({.rule = rule, .sources = 4, .count = count, .shift = count % 4});
  check_steps<From, Copy>({.rule = rule, .sources = 3, .scale = 0.3F});
  check_steps<From, Copy>({.rule = rule, .sources = 3, .is_tame = false});
}

Rule sgd_rule(double momentum, bool nesterov) {
  Rule rule;
  rule.kind = RuleKind::kSgd;
  rule.lr = 0.1;
  rule.momentum = momentum;
  rule.dampening = nesterov ? 0 : 0.1;
  rule.nesterov = nesterov;
  rule.weight_decay = 0.01;
  return rule;
}

Rule adam_rule(RuleKind kind) {
  Rule rule;
  rule.kind = kind;
  rule.lr = 0.01;
  rule.weight_decay = 0.1;
  return rule;
}

TEST_CASE("average and SGD in one kernel have the bits of the two calls on the CPU") {
  check_rule<Float32, BFloat16>(sgd_rule(0, false));
  check_rule<BFloat16, Float16>(sgd_rule(0.9, false));
  check_rule<Float16, BFloat16>(sgd_rule(0.9, true));
  check_rule<Float32, Float16>(sgd_rule(0.9, true));
}

TEST_CASE("average and Adam in one kernel have the bits of the two calls on the CPU") {
  check_rule<Float32, BFloat16>(adam_rule(RuleKind::kAdam));
  check_rule<BFloat16, BFloat16>(adam_rule(RuleKind::kAdamW));
  check_rule<Float16, Float16>(adam_rule(RuleKind::kAdamW));
  Rule rule = adam_rule(RuleKind::kAdam);
  rule.clip_value = 0.5;
  rule.beta1 = 0.4;  // The other end of torch.lerp.
  check_rule<Float32, Float16>(rule);
}

TEST_CASE("a word that says so keeps a step from changing anything") {
  const auto weights = random_items<Float32>(500, 3, true);
  const Array<float> there(weights);
  const Array<float> field(weights);
  const Array<float> gradient(weights);
  const Array<std::uint32_t> skip(std::vector<std::uint32_t>{1});
  const Array<gradring_step_scalars> scalars(
      std::vector{scalars_of(adam_rule(RuleKind::kAdam), 1)});
  gradring_step call = {};
  call.fold.sources[0] = gradient.data();
  call.fold.source_count = call.fold.divisor = 1;
  call.fold.from = static_cast<int>(DType::kFloat32);
  call.fold.count = 500;
  call.weights = there.data();
  call.fields[0] = call.fields[1] = field.data();
  call.scalars = scalars.data();
  call.skip = skip.data();
  const auto& streaming = Device::get().streaming();
  REQUIRE(streaming.adam(0, &call, Device::get().stream()) == 0);
  call.fields[0] = nullptr;
  REQUIRE(streaming.sgd(0, &call, Device::get().stream()) == 0);
  CHECK(is_same(there.read(), weights));
  CHECK(is_same(field.read(), weights));

  CHECK(streaming.adam(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  call.fold.from = static_cast<int>(DType::kFloat64);
  CHECK(streaming.sgd(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
  call.fold.from = static_cast<int>(DType::kFloat32);
  call.scalars = nullptr;
  CHECK(streaming.sgd(0, &call, nullptr) == GRADRING_GPU_BAD_CALL);
}

}  // namespace
}  // namespace gradring::gpu_step_test
