// Rows as they travel: float32, or fewer bytes with what that leaves out kept aside
// (kernels/codec.h). Pure functions on pointers, callable from any thread.
#pragma once

#include <cstddef>

#include "wire/ps_frames.h"

namespace gradring::ps {

// kInt8 has a scale for every 256 floats of a row, and at least one a row.
std::size_t encoded_rows_bytes(wire::RowCodec codec, std::size_t dim, std::size_t rows);

// With v = values + residual (null: 0): writes v's encoding to `out` and v - decoded to residual.
// Everything is rows x dim, row by row.
void encode_rows(wire::RowCodec codec, std::size_t dim, std::size_t rows, const float* values,
                 float* residual, std::byte* out);
void decode_rows(wire::RowCodec codec, std::size_t dim, std::size_t rows, const std::byte* from,
                 float* out);

}  // namespace gradring::ps
