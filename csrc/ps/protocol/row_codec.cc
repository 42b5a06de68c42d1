#include "ps/protocol/row_codec.h"

#include "base/copy_bytes.h"
#include "kernels/codec.h"

namespace gradring::ps {
namespace {

kernels::Codec codec_of(wire::RowCodec codec) {
  return {static_cast<kernels::CodecKind>(static_cast<std::uint8_t>(codec) - 1), 1};
}

// The others are the same whether they are cut into rows or not.
bool goes_row_by_row(wire::RowCodec codec) {
  return codec == wire::RowCodec::kInt8;
}

}  // namespace

std::size_t encoded_rows_bytes(wire::RowCodec codec, std::size_t dim, std::size_t rows) {
  if (codec == wire::RowCodec::kFloat32) return rows * dim * sizeof(float);
  if (goes_row_by_row(codec)) return rows * kernels::encoded_bytes(codec_of(codec), dim);
  return kernels::encoded_bytes(codec_of(codec), rows * dim);
}

void encode_rows(wire::RowCodec codec, std::size_t dim, std::size_t rows, const float* values,
                 float* residual, std::byte* out) {
  if (rows == 0 || dim == 0) return;
  if (codec == wire::RowCodec::kFloat32) {
    float* floats = reinterpret_cast<float*>(out);
    if (residual == nullptr) {
      copy_bytes(floats, values, rows * dim * sizeof(float));
      return;
    }
    for (std::size_t i = 0; i < rows * dim; ++i) {
      floats[i] = values[i] + residual[i];
      residual[i] = 0;
    }
    return;
  }
  const kernels::Codec kind = codec_of(codec);
  if (!goes_row_by_row(codec)) {
    kernels::encode(kind, values, residual, rows * dim, out);
    return;
  }
  const std::size_t row_bytes = kernels::encoded_bytes(kind, dim);
  for (std::size_t row = 0; row < rows; ++row)
    kernels::encode(kind, values + row * dim, residual == nullptr ? nullptr : residual + row * dim,
                    dim, out + row * row_bytes);
}

void decode_rows(wire::RowCodec codec, std::size_t dim, std::size_t rows, const std::byte* from,
                 float* out) {
  if (rows == 0 || dim == 0) return;
  if (codec == wire::RowCodec::kFloat32) {
    copy_bytes(out, from, rows * dim * sizeof(float));
    return;
  }
  const kernels::Codec kind = codec_of(codec);
  if (!goes_row_by_row(codec)) {
    kernels::decode(kind, from, rows * dim, out, false);
    return;
  }
  const std::size_t row_bytes = kernels::encoded_bytes(kind, dim);
  for (std::size_t row = 0; row < rows; ++row)
    kernels::decode(kind, from + row * row_bytes, dim, out + row * dim, false);
}

}  // namespace gradring::ps
