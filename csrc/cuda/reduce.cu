#include "cuda/reduce.cuh"

#include "cuda/stream.h"

namespace gradring::cuda {
namespace {

using ReduceKernel = void (*)(gradring_reduce);

// By folder_for().
template <typename From, typename To>
constexpr ReduceKernel kSums[] = {&reduce_kernel<From, To, Sum, 1>,
                                  &reduce_kernel<From, To, Sum, 2>,
                                  &reduce_kernel<From, To, Sum, kMostAtOnce<From>>};

ReduceKernel sum_of(int from, int to, unsigned folder) {
  const auto is = [from, to](DType a, DType b) { return from == code(a) && to == code(b); };
  if (is(DType::kFloat32, DType::kFloat32)) return kSums<Float32, Float32>[folder];
  if (is(DType::kFloat32, DType::kFloat16)) return kSums<Float32, Float16>[folder];
  if (is(DType::kFloat32, DType::kBFloat16)) return kSums<Float32, BFloat16>[folder];
  if (is(DType::kFloat16, DType::kFloat16)) return kSums<Float16, Float16>[folder];
  if (is(DType::kFloat16, DType::kFloat32)) return kSums<Float16, Float32>[folder];
  if (is(DType::kBFloat16, DType::kBFloat16)) return kSums<BFloat16, BFloat16>[folder];
  if (is(DType::kBFloat16, DType::kFloat32)) return kSums<BFloat16, Float32>[folder];
  if (is(DType::kFloat64, DType::kFloat64)) return kSums<Float64, Float64>[folder];
  return nullptr;
}

template <typename Type>
constexpr ReduceKernel kAny = &reduce_kernel<Type, Type, AnyOperator, kMostAtOnce<Type>>;

ReduceKernel any_of(int from, int to) {
  if (from != to || from < 0) return nullptr;
  switch (static_cast<DType>(from)) {
    case DType::kFloat64: return kAny<Float64>;
    case DType::kFloat32: return kAny<Float32>;
    case DType::kFloat16: return kAny<Float16>;
    case DType::kBFloat16: return kAny<BFloat16>;
    default: return nullptr;
  }
}

ReduceKernel kernel_of(const gradring_reduce& call) {
  const int from = call.fold.from;
  const unsigned sources = call.fold.source_count;
  switch (static_cast<ReduceOp>(call.op)) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return sum_of(from, call.to, folder_for(sources));
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kMax:  // One source is no operator's.
      return sources == 1 && from == call.to ? sum_of(from, from, 0) : any_of(from, call.to);
    default: return nullptr;
  }
}

}  // namespace

int reduce(int device, const gradring_reduce* call, gradring_stream stream) {
  if (!can_fold(call->fold) || call->op < 0) return GRADRING_GPU_BAD_CALL;
  const ReduceKernel kernel = kernel_of(*call);
  if (kernel == nullptr) return GRADRING_GPU_BAD_CALL;
  if (call->fold.count == 0) return GRADRING_GPU_OK;
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  return launch(kernel, blocks_for_vector(device, call->fold.count), kThreads, 0,
                static_cast<cudaStream_t>(stream), *call);
}

int preload_reductions() {
  Preload loaded;
  for (int from = code(DType::kFloat64); from <= code(DType::kBFloat16); ++from) {
    loaded.add(any_of(from, from));
    for (int to = code(DType::kFloat64); to <= code(DType::kBFloat16); ++to)
      for (unsigned folder = 0; folder < kFolders; ++folder) loaded.add(sum_of(from, to, folder));
  }
  return loaded.error();
}

}  // namespace gradring::cuda
