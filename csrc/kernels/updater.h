// Updater: a rule made ready for many rows of one length. It works out once what update_row works
// out for every row; the results are the same bits. Owned by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/update.h"
#include "kernels/update_table.h"

namespace gradring::kernels {

// What Adam's rules divide the moments by in a step, in double. Both grow to 1.
struct BiasCorrection {
  double mean = 1;
  double root_of_square = 1;
};
BiasCorrection bias_correction(const Rule& rule, std::uint64_t step);
// Those of the steps 1, 2, ... up to the first at which both are 1, as they stay. Throws
// InvalidArgument if that takes more than `most` steps.
std::vector<BiasCorrection> bias_corrections(const Rule& rule, std::size_t most = 1u << 22);

// `Float` is float or double.
template <typename Float>
class Updater {
 public:
  // Throws InvalidArgument if the rule is not valid.
  Updater(const Rule& rule, std::size_t dim);

  const Rule& rule() const { return rule_; }
  std::size_t dim() const { return dim_; }

  // As update_row.
  void update(std::uint64_t step, Float* weights, Float* state, Float* gradient);
  // The same with the fields of the state where they lie: kMaxStateFields pointers, null after the
  // last field.
  void update_fields(std::uint64_t step, Float* weights, Float* const* fields, Float* gradient);

 private:
  // What a rule makes of the number of steps. Rows differ in it, but not much: remembered by its
  // last digits.
  struct OfStep {
    std::uint64_t step = 0;
    Float descent = 0;
    Float root_correction = 1;
  };
  static constexpr std::size_t kRemembered = 64;

  void set_step(std::uint64_t step);

  Rule rule_;
  std::size_t dim_;
  UpdateKernel<Float> kernel_;
  Scalars<Float> scalars_;
  bool depends_on_step_;
  std::uint64_t step_ = 0;                     // That scalars_ are for.
  std::size_t block_ = 0;                      // Most floats a kernel gets at once.
  std::size_t offsets_[kMaxStateFields] = {};  // 0 after the last field.
  OfStep remembered_[kRemembered];
};

// What step number `step` takes from a valid rule, for those who run the formulas (step.h)
// themselves. `Float` is float or double.
template <typename Float>
Scalars<Float> step_scalars(const Rule& rule, std::uint64_t step);

// One step of `rows` rows, all of the same step, whose weights and fields lie one after the other.
// The gradient is only read. `fields` has a pointer for each of state_fields().
template <typename Float>
void update_dense(const Rule& rule, std::uint64_t step, std::size_t rows, std::size_t dim,
                  Float* weights, Float* const* fields, const Float* gradient);

extern template class Updater<float>;
extern template class Updater<double>;

}  // namespace gradring::kernels
