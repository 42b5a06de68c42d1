#include "ps/residuals.h"

#include <algorithm>

#include "kernels/update.h"

namespace gradring::ps {

void Residuals::read(std::span<const std::uint64_t> ids, float* out) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t row = index_.find(ids[i]);
    if (row == HashIndex::kNone) {
      std::fill_n(out + i * dim_, dim_, 0.0f);
    } else {
      std::copy_n(rows_.data() + row * dim_, dim_, out + i * dim_);
    }
  }
}

void Residuals::write(std::span<const std::uint64_t> ids, const float* sent,
                      const float* residuals) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!kernels::is_finite(sent + i * dim_, dim_)) continue;
    std::uint64_t row = index_.find(ids[i]);
    if (row == HashIndex::kNone) {
      row = index_.size();
      index_.insert(ids[i], row);
      rows_.resize(rows_.size() + dim_);
    }
    std::copy_n(residuals + i * dim_, dim_, rows_.data() + row * dim_);
  }
}

void Residuals::clear() {
  index_ = HashIndex();
  rows_ = {};
}

}  // namespace gradring::ps
