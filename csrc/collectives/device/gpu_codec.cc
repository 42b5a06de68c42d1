#include "collectives/device/gpu_codec.h"

#include "base/types.h"

namespace gradring::collectives {
namespace {

using kernels::CodecKind;

constexpr const char* kEncode = "encode what is to be reduced";
constexpr const char* kDecode = "decode what was reduced";

std::int32_t code(DType dtype) {
  return static_cast<std::int32_t>(dtype);
}

DType half_of(const kernels::Codec& codec) {
  return codec.kind == CodecKind::kFloat16 ? DType::kFloat16 : DType::kBFloat16;
}

// One source, and where the sum begins.
gradring_dequantise one_source(const void* from, const GpuCodec::Vector& vector, int start) {
  gradring_dequantise call{};
  call.sources.at[0] = from;
  call.sources.count = 1;
  call.sources.plain = -1;
  call.count = vector.count;
  call.dst = vector.at;
  call.start = start;
  return call;
}

}  // namespace

bool GpuCodec::knows(const gradring_gpu_api& api, const kernels::Codec& codec,
                     std::uint64_t count) {
  const gradring_codec_kernels* const codecs = api.codecs;
  const gradring_stream_kernels* const streaming = api.streaming;
  // Sums are divided by a kernel of int8's, whatever the codec.
  if (codecs == nullptr || codecs->bytes < sizeof *codecs || codecs->dequantise == nullptr)
    return false;
  switch (codec.kind) {
    case CodecKind::kBFloat16:
    case CodecKind::kFloat16:
      return streaming != nullptr && streaming->bytes >= sizeof *streaming &&
             streaming->pack != nullptr && streaming->unpack != nullptr;
    case CodecKind::kInt8: return codecs->quantise != nullptr && codecs->requantise != nullptr;
    case CodecKind::kTopK:
      return codecs->sparsify != nullptr && codecs->desparsify != nullptr &&
             count <= GRADRING_SPARSIFY_ELEMENTS;
  }
  return false;
}

std::size_t GpuCodec::scratch_bytes(std::uint64_t longest) const {
  if (codec_.kind != CodecKind::kTopK) return 0;
  return static_cast<std::size_t>(device_.api().codecs->sparsify_scratch_bytes(longest));
}

bool GpuCodec::needs_sum(std::size_t sources) const {
  return codec_.kind != CodecKind::kInt8 || sources > GRADRING_CODEC_SOURCES;
}

// All indices, then all values.
std::uint64_t GpuCodec::kept(std::uint64_t count) const {
  return kernels::encoded_bytes(codec_, static_cast<std::size_t>(count)) / 8;
}

void GpuCodec::encode(const Vector& vector, float* residual, std::byte* out,
                      gpu::StreamView stream) const {
  if (vector.count == 0) return;
  const auto& codecs = *device_.api().codecs;
  const int on = device_.index();
  if (is_16_bit()) {
    gradring_pack call{};
    call.chunks = vector.pieces;
    call.from = code(DType::kFloat32);
    call.to = code(half_of(codec_));
    call.bucket = out;
    call.residual = residual;
    call.saturates = 1;
    device_.check(device_.api().streaming->pack(on, &call, stream.handle()), kEncode);
  } else if (codec_.kind == CodecKind::kInt8) {
    const gradring_quantise call{vector.at, residual, vector.count, out, nullptr};
    device_.check(codecs.quantise(on, &call, stream.handle()), kEncode);
  } else {
    const gradring_sparsify call{vector.at,          residual, vector.count,
                                 kept(vector.count), out,      scratch_};
    device_.check(codecs.sparsify(on, &call, stream.handle()), kEncode);
  }
}

void GpuCodec::encode_sum(const Sum& sum, gpu::StreamView stream) const {
  if (sum.sum.count == 0) return;
  if (!needs_sum(sum.sources.size())) {
    gradring_requantise call{};
    call.sources.count = static_cast<std::int32_t>(sum.sources.size());
    call.sources.plain = -1;
    for (std::size_t i = 0; i < sum.sources.size(); ++i) {
      call.sources.at[i] = sum.sources[i];
      if (sum.sources[i] != nullptr) continue;
      call.sources.at[i] = sum.own;
      call.sources.plain = static_cast<std::int32_t>(i);
    }
    call.count = sum.sum.count;
    call.residual = sum.residual;
    call.out = sum.out;
    call.start = GRADRING_SUM_FROM_ZERO;
    const auto requantise = device_.api().codecs->requantise;
    return device_.check(requantise(device_.index(), &call, stream.handle()), kEncode);
  }
  stream.fill(sum.sum.at, 0, sum.sum.count * sizeof(float));
  for (const std::byte* const source : sum.sources) {
    if (source != nullptr) {
      add(source, sum.sum, stream);
      continue;
    }
    auto call = one_source(sum.own, sum.sum, GRADRING_SUM_FROM_DST);
    call.sources.plain = 0;
    dequantise(call, stream);
  }
  encode(sum.sum, sum.residual, sum.out, stream);
}

void GpuCodec::add(const std::byte* from, const Vector& sum, gpu::StreamView stream) const {
  if (is_16_bit()) return unpack(from, sum, true, stream);
  if (codec_.kind == CodecKind::kTopK) return desparsify(from, sum, true, stream);
  dequantise(one_source(from, sum, GRADRING_SUM_FROM_DST), stream);
}

void GpuCodec::decode(const std::byte* from, const Vector& vector, float divisor,
                      gpu::StreamView stream) const {
  if (vector.count == 0) return;
  if (codec_.kind == CodecKind::kInt8) {
    auto call = one_source(from, vector, GRADRING_SUM_FROM_FIRST);
    call.divisor = divisor;
    return dequantise(call, stream);
  }
  if (is_16_bit())
    unpack(from, vector, false, stream);
  else
    desparsify(from, vector, false, stream);
  if (divisor == 0 || divisor == 1) return;
  auto call = one_source(vector.at, vector, GRADRING_SUM_FROM_FIRST);
  call.sources.plain = 0;
  call.divisor = divisor;
  dequantise(call, stream);
}

void GpuCodec::unpack(const std::byte* from, const Vector& vector, bool adds,
                      gpu::StreamView stream) const {
  gradring_unpack call{};
  call.chunks = vector.pieces;
  call.from = code(half_of(codec_));
  call.to = code(DType::kFloat32);
  call.bucket = from;
  call.adds = adds ? 1 : 0;
  const auto& streaming = *device_.api().streaming;
  device_.check(streaming.unpack(device_.index(), &call, stream.handle()), kDecode);
}

void GpuCodec::desparsify(const std::byte* from, const Vector& vector, bool adds,
                          gpu::StreamView stream) const {
  const gradring_desparsify call{from, kept(vector.count), vector.count, vector.at, adds ? 1 : 0};
  const auto& codecs = *device_.api().codecs;
  device_.check(codecs.desparsify(device_.index(), &call, stream.handle()), kDecode);
}

void GpuCodec::dequantise(const gradring_dequantise& call, gpu::StreamView stream) const {
  const auto& codecs = *device_.api().codecs;
  device_.check(codecs.dequantise(device_.index(), &call, stream.handle()), kDecode);
}

}  // namespace gradring::collectives
