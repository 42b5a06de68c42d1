// The top-k codec; see codec.h, which is the way to it.
#pragma once

#include <cstddef>

namespace gradring::kernels {

std::size_t kept_count(double ratio, std::size_t count);
void encode_top(std::size_t kept, const float* values, float* residual, std::size_t count,
                std::byte* out);
void decode_top(std::size_t kept, const std::byte* from, std::size_t count, float* dst, bool adds);

}  // namespace gradring::kernels
