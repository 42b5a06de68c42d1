#include "ps/client/residuals.h"

#include <algorithm>

namespace gradring::ps {

void Residuals::take(std::span<const std::uint64_t> ids, float* out) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t row = index_.find(ids[i]);
    if (row == HashIndex::kNone) {
      std::fill_n(out + i * dim_, dim_, 0.0f);
    } else {
      float* const kept = rows_.data() + row * dim_;
      std::copy_n(kept, dim_, out + i * dim_);
      std::fill_n(kept, dim_, 0.0f);
    }
  }
}

void Residuals::add(std::uint64_t id, const float* residual) {
  std::uint64_t row = index_.find(id);
  if (row == HashIndex::kNone) {
    row = index_.size();
    index_.insert(id, row);
    rows_.resize(rows_.size() + dim_, 0.0f);
  }
  float* const kept = rows_.data() + row * dim_;
  for (std::size_t i = 0; i < dim_; ++i) kept[i] += residual[i];
}

void Residuals::clear() {
  index_ = HashIndex();
  give_back(rows_);
}

}  // namespace gradring::ps
