// The update kernels of one instruction set as a table of plain function pointers, and the scalars
// they are given. update.cc picks a table once; the tests compare all tables that this machine can
// run, which must not differ in a bit. The entries are callable from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/update.h"

namespace gradring::kernels {

// What a step takes from its rule, rounded from double once. What a rule does not use is 0.
template <typename Float>
struct Scalars {
  Float descent = 0;          // Minus the learning rate, with what the step count makes of it.
  Float root_correction = 1;  // The root of the second moment is divided by it.
  bool is_first_step = false;

  Float clip_value = 0;
  double clip_norm = 0;
  Float weight_decay = 0;  // Times the weight, added to the gradient.
  Float shrink = 1;        // Weights are multiplied by it first.
  Float momentum = 0;
  Float undampened = 1;  // 1 - dampening.
  bool is_nesterov = false;
  bool is_centered = false;
  Float mean_weight = 0;   // 1 - beta1 (kRmsProp: 1 - alpha): of the new gradient in its mean.
  Float square_decay = 0;  // beta2, alpha.
  Float square_weight = 0;
  Float eps = 0;
  Float lr = 0;  // kFtrl.
  Float l1 = 0;
  Float l2 = 0;
  Float beta = 0;
};

// One step of `count` weights. `fields` has a pointer for each of state_fields().
template <typename Float>
using UpdateKernel = void (*)(const Scalars<Float>& scalars, std::size_t count, Float* weights,
                              Float* const* fields, Float* gradient);

struct UpdateTable {
  const char* isa = "";
  // By the values of RuleKind.
  UpdateKernel<float> floats[kRuleKindCount] = {};
  UpdateKernel<double> doubles[kRuleKindCount] = {};
  bool (*is_finite)(const float* values, std::size_t count) = nullptr;
};

extern const UpdateTable kBaselineUpdates;
#if defined(__x86_64__)
extern const UpdateTable kAvx2Updates;
#endif

// The tables that this CPU can run, slowest first. Never empty.
std::span<const UpdateTable* const> usable_update_tables();

}  // namespace gradring::kernels
