// Launchers of what groups equal ids.
#include "cuda/unique.cuh"

#include "cuda/preload.h"
#include "cuda/rows.h"

namespace gradring::cuda {
namespace {

constexpr std::uint64_t kLine = 16;
constexpr unsigned kBlocksPerMultiprocessor = 4;

std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// Where the parts of the scratch memory begin, and its end.
struct Layout {
  std::uint64_t tiles;
  std::uint64_t head_tiles;
  std::uint64_t digit_tiles;
  std::uint64_t zeros_end;
  std::uint64_t ids[2];
  std::uint64_t positions[2];
  std::uint64_t end;

  explicit Layout(std::uint64_t count) : tiles((count + kUniqueTile - 1) / kUniqueTile) {
    head_tiles = rounded_up(sizeof(UniqueState));
    digit_tiles = rounded_up(head_tiles + tiles * sizeof(std::uint64_t));
    zeros_end = digit_tiles + kPasses * tiles * kDigits * sizeof(std::uint32_t);
    std::uint64_t at = rounded_up(zeros_end);
    for (int i = 0; i < 2; ++i) {
      ids[i] = at;
      at = rounded_up(at + count * sizeof(std::uint64_t));
      positions[i] = at;
      at = rounded_up(at + count * sizeof(std::uint32_t));
    }
    end = at;
  }
};

UniqueWork work_for(const gradring_unique& call, const Layout& layout) {
  std::byte* const scratch = static_cast<std::byte*>(call.scratch);
  UniqueWork work = {};
  work.call = call;
  work.state = reinterpret_cast<UniqueState*>(scratch);
  work.head_tiles = reinterpret_cast<std::uint64_t*>(scratch + layout.head_tiles);
  work.digit_tiles = reinterpret_cast<std::uint32_t*>(scratch + layout.digit_tiles);
  for (int i = 0; i < 2; ++i) {
    work.ids[i] = reinterpret_cast<std::uint64_t*>(scratch + layout.ids[i]);
    work.positions[i] = reinterpret_cast<std::uint32_t*>(scratch + layout.positions[i]);
  }
  return work;
}

}  // namespace

std::uint64_t unique_scratch_bytes(std::uint64_t count) {
  return Layout(count).end;
}

int unique(int device, const gradring_unique* call, gradring_stream stream) {
  if (call->count > GRADRING_ROW_IDS ||
      reinterpret_cast<std::uintptr_t>(call->scratch) % kLine != 0)
    return GRADRING_GPU_BAD_CALL;
  const OnDevice on_device(device);
  if (on_device.error() != 0) return on_device.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (call->count == 0) {
    if (const int error = cudaMemsetAsync(call->unique_count, 0, sizeof(std::uint32_t), on))
      return error;
    return cudaMemsetAsync(call->starts, 0, sizeof(std::uint32_t), on);
  }
  const Layout layout(call->count);
  const UniqueWork work = work_for(*call, layout);
  if (const int error = cudaMemsetAsync(call->scratch, 0, layout.zeros_end, on)) return error;
  const dim3 block(kUniqueThreads);
  const dim3 resident(resident_blocks(device, kBlocksPerMultiprocessor, layout.tiles));
  const dim3 tiles(static_cast<unsigned>(layout.tiles));
  if (const int error = launch(&count_digits, resident, block, 0, on, work)) return error;
  for (unsigned pass = 0; pass < kPasses; ++pass)
    if (const int error = launch(&sort_by_digit, tiles, block, 0, on, work, pass)) return error;
  return launch(&mark_heads, tiles, block, 0, on, work);
}

int load_unique_kernels() {
  return load_kernels(&count_digits, &sort_by_digit, &mark_heads);
}

}  // namespace gradring::cuda
