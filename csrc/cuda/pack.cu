#include "cuda/pack.cuh"

#include "cuda/stream.h"

namespace gradring::cuda {
namespace {

using PackKernel = void (*)(gradring_pack);
using UnpackKernel = void (*)(gradring_unpack);

template <typename From>
constexpr PackKernel kPacks[] = {nullptr, &pack_kernel<From, Float32, Feedback::kNone>,
                                 &pack_kernel<From, Float16, Feedback::kNone>,
                                 &pack_kernel<From, BFloat16, Feedback::kNone>};
template <typename From>
constexpr PackKernel kFeedbackPacks[] = {nullptr, nullptr,
                                         &pack_kernel<From, Float16, Feedback::kResidual>,
                                         &pack_kernel<From, BFloat16, Feedback::kResidual>};
template <typename From>
constexpr UnpackKernel kUnpacks[] = {nullptr, &unpack_kernel<From, Float32>,
                                     &unpack_kernel<From, Float16>, &unpack_kernel<From, BFloat16>};

bool is_float(int dtype) {
  return dtype >= code(DType::kFloat64) && dtype <= code(DType::kBFloat16);
}

// float64 goes to itself only.
PackKernel pack_of(int from, int to, bool has_residual) {
  if (!is_float(from) || !is_float(to)) return nullptr;
  if (from == code(DType::kFloat64) && to == from && !has_residual)
    return &pack_kernel<Float64, Float64, Feedback::kNone>;
  switch (static_cast<DType>(from)) {
    case DType::kFloat32: return (has_residual ? kFeedbackPacks<Float32> : kPacks<Float32>)[to];
    case DType::kFloat16: return (has_residual ? kFeedbackPacks<Float16> : kPacks<Float16>)[to];
    case DType::kBFloat16: return (has_residual ? kFeedbackPacks<BFloat16> : kPacks<BFloat16>)[to];
    default: return nullptr;
  }
}

UnpackKernel unpack_of(int from, int to) {
  if (!is_float(from) || !is_float(to)) return nullptr;
  if (from == code(DType::kFloat64) && to == from) return &unpack_kernel<Float64, Float64>;
  switch (static_cast<DType>(from)) {
    case DType::kFloat32: return kUnpacks<Float32>[to];
    case DType::kFloat16: return kUnpacks<Float16>[to];
    case DType::kBFloat16: return kUnpacks<BFloat16>[to];
    default: return nullptr;
  }
}

struct Copy {
  gradring_chunks chunks;
  void* bucket;
  bool is_pack;
  const std::uint32_t* skip;
};

template <typename Item>
int copy_items(int device, const Copy& copy, cudaStream_t stream) {
  return launch(copy_kernel<Item>, blocks_for(device, copy.chunks.count), kThreads, 0, stream,
                copy.chunks, static_cast<Item*>(copy.bucket), copy.is_pack, copy.skip);
}

int copy_bits(int device, int dtype, const Copy& copy, cudaStream_t stream) {
  switch (bytes_of(dtype)) {
    case 1: return copy_items<std::uint8_t>(device, copy, stream);
    case 2: return copy_items<std::uint16_t>(device, copy, stream);
    case 4: return copy_items<std::uint32_t>(device, copy, stream);
    case 8: return copy_items<unsigned long long>(device, copy, stream);
    default: return GRADRING_GPU_BAD_CALL;
  }
}

}  // namespace

int pack(int device, const gradring_pack* call, gradring_stream stream) {
  if (call->chunks.count == 0) return GRADRING_GPU_OK;
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  const auto at = static_cast<cudaStream_t>(stream);
  const bool has_residual = call->residual != nullptr;
  if (call->from == call->to && call->scale == nullptr && !has_residual &&
      call->nonfinite == nullptr)
    return copy_bits(device, call->from, {call->chunks, call->bucket, true, nullptr}, at);
  const PackKernel kernel = pack_of(call->from, call->to, has_residual);
  if (kernel == nullptr) return GRADRING_GPU_BAD_CALL;
  return launch(kernel, blocks_for(device, call->chunks.count), kThreads, 0, at, *call);
}

int unpack(int device, const gradring_unpack* call, gradring_stream stream) {
  if (call->chunks.count == 0) return GRADRING_GPU_OK;
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  const auto at = static_cast<cudaStream_t>(stream);
  if (call->from == call->to && call->scale == nullptr && call->adds == 0 &&
      call->nonfinite == nullptr)
    return copy_bits(device, call->from,
                     {call->chunks, const_cast<void*>(call->bucket), false, call->skip}, at);
  const UnpackKernel kernel = unpack_of(call->from, call->to);
  if (kernel == nullptr) return GRADRING_GPU_BAD_CALL;
  return launch(kernel, blocks_for(device, call->chunks.count), kThreads, 0, at, *call);
}

int preload_packs() {
  Preload loaded;
  for (int from = code(DType::kFloat64); is_float(from); ++from)
    for (int to = code(DType::kFloat64); is_float(to); ++to) {
      loaded.add(pack_of(from, to, false));
      loaded.add(pack_of(from, to, true));
      loaded.add(unpack_of(from, to));
    }
  loaded.add(&copy_kernel<std::uint8_t>);
  loaded.add(&copy_kernel<std::uint16_t>);
  loaded.add(&copy_kernel<std::uint32_t>);
  loaded.add(&copy_kernel<unsigned long long>);
  return loaded.error();
}

}  // namespace gradring::cuda
