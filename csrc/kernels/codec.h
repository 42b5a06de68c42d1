// Codecs: fewer bytes for float32 vectors, with error feedback. What an encoding leaves out is
// written to the residual, and is part of the next one. For every element, decode(encode(v)) +
// residual == v, bit for bit (see below). Pure functions on pointers, callable from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradring::kernels {

// The values are part of the wire format: append, never renumber.
enum class CodecKind : std::uint8_t {
  kBFloat16 = 0,  // Rounded to nearest even; what would overflow is the largest finite value.
  kFloat16 = 1,   // The same. Exact residuals up to 2^29.
  kInt8 = 2,      // Blocks of 256 with one float32 scale each, the largest magnitude / 127.
  kTopK = 3,      // The `ratio` of largest magnitude, with their indices; of equals, the first.
};
inline constexpr std::size_t kCodecKindCount = 4;
std::string_view name(CodecKind kind);

struct Codec {
  CodecKind kind = CodecKind::kBFloat16;
  double ratio = 1;  // kTopK: of elements that are kept, at least one; in (0, 1].
};

// Depends on nothing but the codec and the count. Throws InvalidArgument for a ratio out of range,
// or more than 2^32 elements in a kTopK.
std::size_t encoded_bytes(const Codec& codec, std::size_t count);

// With v = values + residual (rounded to float32; residual may be null: 0): writes v's encoding to
// `out`, and v - decoded to residual. That difference is exact, so nothing is lost: bf16 and int8
// for every finite v, fp16 for |v| < 2^29, top-k always. What is not finite arrives as not finite
// (in int8 all of its block) and leaves a residual of 0. In kInt8 and kTopK a sum that is a NaN
// goes as the one NaN of reduce.h, and the codes of a block that is not finite are 0: the bytes do
// not depend on the processor.
void encode(const Codec& codec, const float* values, float* residual, std::size_t count,
            std::byte* out);

// dst = decoded, or (`adds`) dst += decoded. `from` holds encoded_bytes(codec, count), which may
// come from another process: indices out of range are left out.
void decode(const Codec& codec, const std::byte* from, std::size_t count, float* dst, bool adds);

}  // namespace gradring::kernels
