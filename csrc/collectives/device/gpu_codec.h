// GpuCodec: one codec's kernels of the GPU plugin, by what a compressed sum needs of them. In the
// format and with the bits of kernels/codec.h. Everything is put into a stream and nothing is
// waited for; all memory but lists is the device's. Callable from any thread. Throws DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/stream.h"
#include "kernels/codec.h"

namespace gradring::collectives {

class GpuCodec {
 public:
  // Floats. `pieces` of it for codecs that need them: places are counted from `at`.
  struct Vector {
    float* at = nullptr;
    std::uint64_t count = 0;
    gradring_chunks pieces = {};
  };

  // Whether the plugin has this codec's kernels, for vectors of so many elements.
  static bool knows(const gradring_gpu_api& api, const kernels::Codec& codec, std::uint64_t count);
  // Whether it is done by the streaming kernels.
  static bool is_16_bit(const kernels::Codec& codec) {
    return codec.kind == kernels::CodecKind::kBFloat16 ||
           codec.kind == kernels::CodecKind::kFloat16;
  }

  // `scratch`: scratch_bytes() for the longest vector that is encoded; of one stream at a time.
  GpuCodec(const gpu::Device& device, const kernels::Codec& codec)
      : device_(device), codec_(codec) {}
  std::size_t scratch_bytes(std::uint64_t longest) const;
  void use_scratch(void* scratch) { scratch_ = scratch; }

  bool needs_pieces() const { return is_16_bit(); }
  // Where it needs memory for a sum between adding up and encoding.
  bool needs_sum(std::size_t sources) const;

  // v = vector + residual (null: 0) -> out; residual = v - decoded.
  void encode(const Vector& vector, float* residual, std::byte* out, gpu::StreamView stream) const;

  // What is added up from left to right, from 0, and then encoded.
  struct Sum {
    std::vector<const std::byte*> sources;  // Encoded; null: `own`.
    const float* own = nullptr;
    Vector sum;  // Its memory only where needs_sum().
    float* residual = nullptr;
    std::byte* out = nullptr;
  };
  void encode_sum(const Sum& sum, gpu::StreamView stream) const;

  // vector = what is decoded, divided unless that is 0.
  void decode(const std::byte* from, const Vector& vector, float divisor,
              gpu::StreamView stream) const;

 private:
  bool is_16_bit() const { return is_16_bit(codec_); }
  void unpack(const std::byte* from, const Vector& vector, bool adds, gpu::StreamView stream) const;
  void desparsify(const std::byte* from, const Vector& vector, bool adds,
                  gpu::StreamView stream) const;
  void dequantise(const gradring_dequantise& call, gpu::StreamView stream) const;
  void add(const std::byte* from, const Vector& sum, gpu::StreamView stream) const;
  std::uint64_t kept(std::uint64_t count) const;

  const gpu::Device& device_;
  const kernels::Codec codec_;
  void* scratch_ = nullptr;
};

}  // namespace gradring::collectives
