// Launchers of the top-k codec's kernels, and the table of all codecs.
#include "cuda/sparsify.cuh"

#include "cuda/codecs.h"
#include "cuda/preload.h"

namespace gradring::cuda {
namespace {

constexpr std::uint64_t kLine = 16;
constexpr unsigned kBlocksPerMultiprocessor = 8;

// One at least: somebody has to say that nothing was found.
std::uint64_t tiles_of(std::uint64_t count) {
  return count == 0 ? 1 : (count + kSparsifyTile - 1) / kSparsifyTile;
}

std::uint64_t list_room(std::uint64_t count) {
  return count / 8;
}

std::uint64_t tile_bytes(std::uint64_t count) {
  return (tiles_of(count) * sizeof(std::uint64_t) + kLine - 1) / kLine * kLine;
}

std::uint64_t* tiles_in(void* scratch) {
  return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(scratch) + sizeof(SparsifyState));
}

// Zeros for the state and the tiles' sums.
int clear(void* scratch, std::uint64_t count, cudaStream_t stream) {
  return cudaMemsetAsync(scratch, 0, sizeof(SparsifyState) + tile_bytes(count), stream);
}

bool is_scratch(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kLine == 0 && pointer != nullptr;
}

}  // namespace

std::uint64_t sparsify_scratch_bytes(std::uint64_t count) {
  return sizeof(SparsifyState) + tile_bytes(count) + list_room(count) * sizeof(std::uint32_t);
}

int sparsify(int device, const gradring_sparsify* call, gradring_stream stream) {
  if (call->count == 0 && call->kept == 0) return GRADRING_GPU_OK;
  if (call->count > GRADRING_SPARSIFY_ELEMENTS || call->kept == 0 || call->kept > call->count ||
      !is_scratch(call->scratch))
    return GRADRING_GPU_BAD_CALL;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  const auto on = static_cast<cudaStream_t>(stream);
  SparsifyWork work = {};
  work.call = *call;
  work.state = static_cast<SparsifyState*>(call->scratch);
  work.tiles = tiles_in(call->scratch);
  work.list = reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::byte*>(work.tiles) +
                                               tile_bytes(call->count));
  work.list_room = static_cast<std::uint32_t>(list_room(call->count));
  if (const int error = clear(call->scratch, call->count, on)) return error;
  const auto tiles = static_cast<unsigned>(tiles_of(call->count));
  const dim3 block(kSparsifyThreads);
  const dim3 resident(resident_blocks(device, kBlocksPerMultiprocessor, tiles));
  if (const int error = launch(&count_keys<0>, resident, block, 0, on, work)) return error;
  if (const int error = launch(&count_keys<1>, resident, block, 0, on, work)) return error;
  if (const int error = launch(&count_keys<2>, resident, block, 0, on, work)) return error;
  return launch(&take_largest, dim3(tiles), block, 0, on, work);
}

int sparsify_above(int device, const gradring_sparsify_above* call, gradring_stream stream) {
  if (call->count > GRADRING_SPARSIFY_ELEMENTS || call->capacity > GRADRING_SPARSIFY_ELEMENTS ||
      !is_scratch(call->scratch))
    return GRADRING_GPU_BAD_CALL;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  const auto on = static_cast<cudaStream_t>(stream);
  const SparsifyAboveWork work = {*call, static_cast<SparsifyState*>(call->scratch),
                                  tiles_in(call->scratch)};
  if (const int error = clear(call->scratch, call->count, on)) return error;
  const dim3 block(kSparsifyThreads);
  const auto tiles = static_cast<unsigned>(tiles_of(call->count));
  if (const int error = launch(&take_above, dim3(tiles), block, 0, on, work)) return error;
  if (call->capacity == 0) return GRADRING_GPU_OK;
  const std::uint64_t blocks = (call->capacity + kSparsifyThreads - 1) / kSparsifyThreads;
  return launch(&fill_places, dim3(resident_blocks(device, kBlocksPerMultiprocessor, blocks)),
                block, 0, on, work);
}

int desparsify(int device, const gradring_desparsify* call, gradring_stream stream) {
  if (call->kept > GRADRING_SPARSIFY_ELEMENTS) return GRADRING_GPU_BAD_CALL;
  if (call->count == 0) return GRADRING_GPU_OK;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (call->adds == 0) {
    if (const int error = cudaMemsetAsync(call->dst, 0, call->count * sizeof(float), on))
      return error;
  }
  if (call->kept == 0) return GRADRING_GPU_OK;
  const std::uint64_t blocks = (call->kept + kSparsifyThreads - 1) / kSparsifyThreads;
  return launch(&add_sparse, dim3(static_cast<unsigned>(blocks)), dim3(kSparsifyThreads), 0, on,
                *call);
}

int preload_codecs(int device) {
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  if (const int error = load_quantise_kernels()) return error;
  return load_kernels(&count_keys<0>, &count_keys<1>, &count_keys<2>, &take_largest, &take_above,
                      &fill_places, &add_sparse);
}

const gradring_codec_kernels kCodecKernels = {
    sizeof(gradring_codec_kernels),
    &quantise,
    &dequantise,
    &requantise,
    &sparsify_scratch_bytes,
    &sparsify,
    &sparsify_above,
    &desparsify,
    &preload_codecs,
};

}  // namespace gradring::cuda
