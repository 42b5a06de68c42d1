#include "kernels/row_updates.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/prefetch.h"
#include "kernels/updater.h"

namespace gradring::kernels {
namespace {

constexpr std::size_t kAhead = 8;  // Rows.

void require_rows(const RowArrays& arrays, std::span<const std::int64_t> slots,
                  std::span<const std::int64_t> steps) {
  if (steps.size() != slots.size())
    throw InvalidArgument(str(slots.size(), " rows with ", steps.size(), " numbers of steps"));
  for (const std::int64_t slot : slots)
    if (static_cast<std::uint64_t>(slot) >= arrays.rows)
      throw InvalidArgument(str("row ", slot, " of a matrix with ", arrays.rows, " rows"));
  for (const std::int64_t step : steps)
    if (step < 1) throw InvalidArgument("steps count from 1");
}

}  // namespace

void update_rows(const Rule& rule, const RowArrays& arrays, std::span<const std::int64_t> slots,
                 std::span<const std::int64_t> steps, const float* gradients) {
  require_rows(arrays, slots, steps);
  const std::size_t dim = arrays.dim;
  Updater<float> updater(rule, dim);
  StateField layout[kMaxStateFields];
  const std::size_t field_count = state_fields(rule, dim, layout);
  std::vector<float> gradient(dim);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto slot = static_cast<std::size_t>(slots[i]);
    const auto later = static_cast<std::size_t>(slots[std::min(i + kAhead, slots.size() - 1)]);
    prefetch_row(arrays.weights + later * dim, dim);
    float* fields[kMaxStateFields] = {};
    for (std::size_t field = 0; field < field_count; ++field) {
      const std::size_t floats = layout[field].floats;
      fields[field] = arrays.fields[field] + slot * floats;
      prefetch_row(arrays.fields[field] + later * floats, floats);
    }
    std::copy_n(gradients + i * dim, dim, gradient.data());
    updater.update_fields(static_cast<std::uint64_t>(steps[i]), arrays.weights + slot * dim, fields,
                          gradient.data());
  }
}

}  // namespace gradring::kernels
