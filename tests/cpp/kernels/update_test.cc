// The update rules' kernels: the same bits on every instruction set, through every way in, and for
// rows of any length. What they compute is held to torch.optim and to the formulas in Python.
#include "kernels/update.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/update_table.h"
#include "kernels/updater.h"

namespace gradring::kernels::update_test {
namespace {

constexpr std::size_t kDims[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100};

std::vector<Rule> all_rules() {
  std::vector<Rule> rules;
  for (std::size_t kind = 0; kind < kRuleKindCount; ++kind) {
    Rule plain;
    plain.kind = static_cast<RuleKind>(kind);
    plain.lr = 0.05;
    rules.push_back(plain);
    Rule full = plain;
    full.momentum = 0.9;
    full.weight_decay = 0.01;
    full.lr_decay = 0.1;
    full.initial_accumulator = 0.25;
    full.l1 = 0.1;
    full.l2 = 0.2;
    full.beta = 1;
    full.beta1 = 0.3;
    full.clip_value = 2;
    full.clip_norm = 3;
    full.centered = true;
    full.eps = 0.125;
    full.nesterov = true;
    rules.push_back(full);
    full.centered = full.nesterov = false;
    full.dampening = 0.1;
    full.clip_norm = 0;
    rules.push_back(full);
  }
  return rules;
}

template <typename Float>
std::vector<Float> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 dice(seed);
  std::normal_distribution<double> normal;
  std::vector<Float> values(count);
  for (Float& value : values) value = static_cast<Float>(normal(dice));
  return values;
}

template <typename Float>
bool same_bits(const std::vector<Float>& a, const std::vector<Float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Float)) == 0);
}

template <typename Float>
std::vector<Float> initial_state(const Rule& rule, std::size_t dim) {
  std::vector<float> state(state_floats(rule, dim));
  initialize_state(rule, dim, state.data());
  return {state.begin(), state.end()};
}

// A row's weights, then its state.
template <typename Float>
std::vector<Float> new_row(const Rule& rule, std::size_t dim) {
  auto row = random_values<Float>(dim, dim);
  const auto state = initial_state<Float>(rule, dim);
  row.insert(row.end(), state.begin(), state.end());
  return row;
}

// What the kernels of one instruction set make of a row in ten steps. Scalars are made up: it is
// only the arithmetic that is compared.
template <typename Float>
std::vector<Float> run_kernel(UpdateKernel<Float> kernel, const Rule& rule, std::size_t dim) {
  Scalars<Float> scalars;
  scalars.descent = Float(-0.1);
  scalars.root_correction = Float(0.3);
  scalars.clip_value = Float(rule.clip_value);
  scalars.clip_norm = rule.clip_norm;
  scalars.weight_decay = Float(rule.weight_decay);
  scalars.shrink = Float(0.99);
  scalars.momentum = Float(rule.momentum);
  scalars.undampened = Float(0.9);
  scalars.is_nesterov = rule.nesterov;
  scalars.is_centered = rule.centered;
  scalars.mean_weight = Float(1 - rule.beta1);
  scalars.square_decay = Float(0.9);
  scalars.square_weight = Float(0.1);
  scalars.eps = Float(rule.eps);
  scalars.lr = Float(rule.lr);
  scalars.l1 = Float(rule.l1);
  scalars.l2 = Float(rule.l2);
  scalars.beta = Float(rule.beta);
  auto row = new_row<Float>(rule, dim);
  StateField layout[kMaxStateFields];
  const std::size_t count = state_fields(rule, dim, layout);
  Float* fields[kMaxStateFields] = {};
  Float* at = row.data() + dim;
  for (std::size_t i = 0; i < count; at += layout[i++].floats) fields[i] = at;
  for (std::uint64_t step = 1; step <= 10; ++step) {
    scalars.is_first_step = step == 1;
    auto gradient = random_values<Float>(dim, step);
    kernel(scalars, dim, row.data(), fields, gradient.data());
  }
  return row;
}

template <typename Float>
void compare_instruction_sets(UpdateKernel<Float> (UpdateTable::*kernels)[kRuleKindCount]) {
  for (const UpdateTable* table : usable_update_tables()) {
    CAPTURE(table->isa);
    for (const Rule& rule : all_rules()) {
      CAPTURE(name(rule.kind));
      const auto at = static_cast<std::size_t>(rule.kind);
      for (const std::size_t dim : kDims) {
        CAPTURE(dim);
        CHECK(same_bits(run_kernel<Float>((table->*kernels)[at], rule, dim),
                        run_kernel<Float>((kBaselineUpdates.*kernels)[at], rule, dim)));
      }
    }
  }
}

TEST_CASE("every instruction set gives the same bits") {
  compare_instruction_sets<float>(&UpdateTable::floats);
  compare_instruction_sets<double>(&UpdateTable::doubles);
}

TEST_CASE("an updater does what update_row does, whatever the order of steps") {
  for (const Rule& rule : all_rules()) {
    CAPTURE(name(rule.kind));
    for (const std::size_t dim : {std::size_t{5}, std::size_t{64}}) {
      auto a = new_row<float>(rule, dim);
      auto b = a;
      Updater<float> updater(rule, dim);
      CHECK(updater.dim() == dim);
      CHECK(updater.rule() == rule);
      // 65 and 1, and 129 and 65, share a place in what the updater remembers.
      for (const std::uint64_t step : {1, 2, 2, 65, 1, 129, 65, 3, 100000}) {
        auto gradient = random_values<float>(dim, step);
        auto same = gradient;
        update_row(rule, step, dim, a.data(), a.data() + dim, gradient.data());
        updater.update(step, b.data(), b.data() + dim, same.data());
      }
      CHECK(same_bits(a, b));
    }
  }
}

TEST_CASE("a long row is its pieces, unless the rule looks at the whole row") {
  constexpr std::size_t kDim = 2500;
  constexpr std::size_t kPiece = 100;
  for (const Rule& rule : all_rules()) {
    CAPTURE(name(rule.kind));
    if (rule.clip_norm > 0 ||
        state_floats(rule, 1) != state_floats(rule, 2) - state_floats(rule, 1))
      continue;
    auto whole = random_values<float>(kDim, 1);
    auto pieces = whole;
    auto whole_state = initial_state<float>(rule, kDim);
    auto piece_states =
        std::vector<std::vector<float>>(kDim / kPiece, initial_state<float>(rule, kPiece));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      auto gradient = random_values<float>(kDim, 10 + step);
      auto same = gradient;
      update_row(rule, step, kDim, whole.data(), whole_state.data(), gradient.data());
      for (std::size_t i = 0; i < piece_states.size(); ++i)
        update_row(rule, step, kPiece, pieces.data() + i * kPiece, piece_states[i].data(),
                   same.data() + i * kPiece);
    }
    CHECK(same_bits(whole, pieces));
  }
}

TEST_CASE("rows that lie one after the other are updated as one by one") {
  for (const Rule& rule : all_rules()) {
    CAPTURE(name(rule.kind));
    for (const std::size_t dim : {std::size_t{3}, std::size_t{1500}}) {
      constexpr std::size_t kRows = 5;
      auto together = random_values<float>(kRows * dim, 1);
      auto one_by_one = together;
      StateField layout[kMaxStateFields];
      const std::size_t count = state_fields(rule, dim, layout);
      std::vector<float> stores[kMaxStateFields];
      float* fields[kMaxStateFields] = {};
      for (std::size_t i = 0; i < count; ++i) {
        stores[i].assign(kRows * layout[i].floats, static_cast<float>(layout[i].initial));
        fields[i] = stores[i].data();
      }
      auto states = std::vector<std::vector<float>>(kRows, initial_state<float>(rule, dim));
      for (std::uint64_t step = 1; step <= 3; ++step) {
        auto gradient = random_values<float>(kRows * dim, 10 + step);
        update_dense(rule, step, kRows, dim, together.data(), fields, gradient.data());
        for (std::size_t row = 0; row < kRows; ++row)
          update_row(rule, step, dim, one_by_one.data() + row * dim, states[row].data(),
                     gradient.data() + row * dim);
      }
      CHECK(same_bits(together, one_by_one));
    }
  }
}

TEST_CASE("state has torch's names, one after the other") {
  Rule rule;
  rule.kind = RuleKind::kRmsProp;
  rule.centered = true;
  rule.momentum = 0.5;
  StateField fields[kMaxStateFields];
  REQUIRE(state_fields(rule, 6, fields) == 3);
  CHECK(fields[0].name == "square_avg");
  CHECK(fields[1].name == "grad_avg");
  CHECK(fields[2].name == "momentum_buffer");
  CHECK(state_floats(rule, 6) == 18);

  rule = {};
  rule.kind = RuleKind::kRowWiseAdam;
  REQUIRE(state_fields(rule, 6, fields) == 2);
  CHECK(fields[1].floats == 1);
  CHECK(state_floats(rule, 6) == 7);

  rule.kind = RuleKind::kFtrl;
  rule.initial_accumulator = 0.5;
  CHECK(initial_state<float>(rule, 2) == std::vector<float>{0.5F, 0.5F, 0, 0});
  CHECK(state_floats({}, 6) == 0);
}

TEST_CASE("every rule has a name of its own") {
  for (std::size_t a = 0; a < kRuleKindCount; ++a)
    for (std::size_t b = 0; b < a; ++b)
      CHECK(name(static_cast<RuleKind>(a)) != name(static_cast<RuleKind>(b)));
  CHECK(name(RuleKind::kRowWiseAdagrad) == "row_wise_adagrad");
}

TEST_CASE("a rule with numbers that make no sense is refused by name") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Rule rule;
  rule.kind = RuleKind::kAdam;
  CHECK_NOTHROW(require_valid(rule));
  rule.lr = nan;
  CHECK_THROWS_WITH_AS(require_valid(rule), "adam: invalid learning rate: nan", InvalidArgument);
  rule.lr = 0;
  rule.beta2 = 1;
  CHECK_THROWS_WITH_AS(require_valid(rule), "adam: invalid beta parameter at index 1: 1",
                       InvalidArgument);
  rule = {};
  rule.kind = RuleKind::kSgd;
  rule.nesterov = true;
  CHECK_THROWS_AS(require_valid(rule), InvalidArgument);
  rule.momentum = 0.9;
  CHECK_NOTHROW(require_valid(rule));
  rule.clip_norm = -1;
  CHECK_THROWS_AS(require_valid(rule), InvalidArgument);
  rule = {};
  rule.kind = RuleKind::kFtrl;
  rule.lr = 0;
  CHECK_THROWS_AS(require_valid(rule), InvalidArgument);
  rule.kind = static_cast<RuleKind>(kRuleKindCount);
  CHECK_THROWS_AS(require_valid(rule), InvalidArgument);
}

TEST_CASE("a rule for float32 has no numbers that are infinite there, or none") {
  const auto fits = [](RuleKind kind, double Rule::* number, double value) {
    Rule rule;
    rule.kind = kind;
    rule.*number = value;
    CHECK_NOTHROW(require_valid(rule));
    try {
      require_float32(rule);
    } catch (const InvalidArgument& error) {
      CHECK(std::string(error.what()).find("does not fit into float32") != std::string::npos);
      return false;
    }
    return true;
  };
  CHECK(fits(RuleKind::kSgd, &Rule::lr, 3e38));
  CHECK_FALSE(fits(RuleKind::kSgd, &Rule::lr, 1e39));
  CHECK(fits(RuleKind::kSgd, &Rule::lr, 1e-60));
  CHECK(fits(RuleKind::kAdam, &Rule::lr, 3e37));
  CHECK_FALSE(fits(RuleKind::kAdam, &Rule::lr, 1e38));  // Its first step is ten times as long.
  CHECK_FALSE(fits(RuleKind::kSgd, &Rule::weight_decay, 1e39));
  CHECK_FALSE(fits(RuleKind::kSum, &Rule::clip_value, 1e-46));
  CHECK(fits(RuleKind::kSum, &Rule::clip_value, 1e-30));
  CHECK(fits(RuleKind::kSum, &Rule::clip_norm, 1e-300));  // Compared in double.
  CHECK_FALSE(fits(RuleKind::kFtrl, &Rule::lr, 1e-40));
}

TEST_CASE("a value that is not finite is found wherever it is") {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const UpdateTable* table : usable_update_tables()) {
    CAPTURE(table->isa);
    std::vector<float> values(100, std::numeric_limits<float>::max());
    values[3] = std::numeric_limits<float>::denorm_min();
    CHECK(table->is_finite(values.data(), values.size()));
    for (std::size_t at = 0; at < values.size(); ++at) {
      const float before = values[at];
      values[at] = bad[at % 4];
      CHECK_FALSE(table->is_finite(values.data(), values.size()));
      CHECK(table->is_finite(values.data(), at));
      values[at] = before;
    }
    std::vector<float> many(10000, 1.0F);
    many.back() = bad[0];
    CHECK_FALSE(table->is_finite(many.data(), many.size()));
    CHECK(table->is_finite(many.data(), many.size() - 1));
  }
  CHECK(is_finite(nullptr, 0));
}

}  // namespace
}  // namespace gradring::kernels::update_test
