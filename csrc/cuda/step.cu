#include "cuda/step.cuh"

#include "cuda/stream.h"

namespace gradring::cuda {
namespace {

using StepKernel = void (*)(gradring_step);

// By folder_for(). Two sources' loads are few beside the state's: no kernel of their own.
template <typename Rule, typename From>
constexpr StepKernel kSteps[] = {&step_kernel<Rule, From, 1>, &step_kernel<Rule, From, 4>,
                                 &step_kernel<Rule, From, 4>};

template <typename Rule>
StepKernel step_of(int from, unsigned folder) {
  switch (from) {
    case code(DType::kFloat32): return kSteps<Rule, Float32>[folder];
    case code(DType::kFloat16): return kSteps<Rule, Float16>[folder];
    case code(DType::kBFloat16): return kSteps<Rule, BFloat16>[folder];
    default: return nullptr;
  }
}

bool is_valid(const gradring_step& call) {
  return can_fold(call.fold) && call.scalars != nullptr &&
         (call.copy == nullptr || call.copy_dtype == code(DType::kFloat16) ||
          call.copy_dtype == code(DType::kBFloat16));
}

template <typename Rule>
int step(int device, const gradring_step& call, gradring_stream stream) {
  const StepKernel kernel =
      is_valid(call) ? step_of<Rule>(call.fold.from, folder_for(call.fold.source_count)) : nullptr;
  if (kernel == nullptr) return GRADRING_GPU_BAD_CALL;
  if (call.fold.count == 0) return GRADRING_GPU_OK;
  const OnDevice on(device);
  if (on.error() != 0) return on.error();
  return launch(kernel, blocks_for_vector(device, call.fold.count), kThreads, 0,
                static_cast<cudaStream_t>(stream), call);
}

}  // namespace

int sgd(int device, const gradring_step* call, gradring_stream stream) {
  return call->fields[0] == nullptr ? step<PlainSgd>(device, *call, stream)
                                    : step<MomentumSgd>(device, *call, stream);
}

int adam(int device, const gradring_step* call, gradring_stream stream) {
  if (call->fields[0] == nullptr || call->fields[1] == nullptr) return GRADRING_GPU_BAD_CALL;
  return step<Adam>(device, *call, stream);
}

int preload_steps() {
  Preload loaded;
  for (int from = code(DType::kFloat32); from <= code(DType::kBFloat16); ++from)
    for (unsigned folder = 0; folder < kFolders; ++folder) {
      loaded.add(step_of<PlainSgd>(from, folder));
      loaded.add(step_of<MomentumSgd>(from, folder));
      loaded.add(step_of<Adam>(from, folder));
    }
  return loaded.error();
}

}  // namespace gradring::cuda
