#include "support/collectives/staged_rig.h"

#include <algorithm>
#include <thread>

namespace gradring::testing {
namespace {

// The driver's own numbers.
constexpr int kNoKernelImage = 209;
constexpr int kNotSupported = 801;

}  // namespace

const gradring_gpu_api& emulated_gpu() {
  return *gradring_gpu_get_api();
}

gradring_gpu_api emulated_gpu_with(const gradring_gpu_runtime& runtime) {
  gradring_gpu_api changed = emulated_gpu();
  changed.runtime = &runtime;
  return changed;
}

const gradring_gpu_api& emulated_gpu_without_waits() {
  static const gradring_gpu_runtime runtime = [] {
    gradring_gpu_runtime changed = *emulated_gpu().runtime;
    changed.device_facts = [](int device, gradring_device_facts* facts) {
      const int code = emulated_gpu().runtime->device_facts(device, facts);
      facts->can_wait_on_memory = 0;
      return code;
    };
    const auto refuse = [](int, gradring_stream, std::uint32_t*, std::uint32_t) -> int {
      return GRADRING_GPU_BAD_CALL;
    };
    changed.stream_wait_value = refuse;
    changed.stream_write_value = refuse;
    return changed;
  }();
  static const gradring_gpu_api api = emulated_gpu_with(runtime);
  return api;
}

const gradring_gpu_api& emulated_gpu_that_refuses_waits() {
  static const gradring_gpu_runtime runtime = [] {
    gradring_gpu_runtime changed = *emulated_gpu().runtime;
    changed.stream_wait_value = [](int, gradring_stream, std::uint32_t*, std::uint32_t) -> int {
      return kNotSupported;
    };
    return changed;
  }();
  static const gradring_gpu_api api = emulated_gpu_with(runtime);
  return api;
}

const gradring_gpu_api& emulated_gpu_without_code() {
  static const gradring_stream_kernels streaming = [] {
    gradring_stream_kernels none{};
    none.bytes = sizeof none;
    none.pack = [](int, const gradring_pack*, gradring_stream) -> int { return kNoKernelImage; };
    none.unpack = [](int, const gradring_unpack*, gradring_stream) -> int {
      return kNoKernelImage;
    };
    none.preload = [](int) -> int { return kNoKernelImage; };
    return none;
  }();
  static const gradring_codec_kernels codecs = [] {
    gradring_codec_kernels none{};
    if (emulated_gpu().codecs != nullptr) none = *emulated_gpu().codecs;
    none.preload = [](int) -> int { return kNoKernelImage; };
    return none;
  }();
  static const gradring_gpu_api api = [] {
    gradring_gpu_api changed = emulated_gpu();
    changed.streaming = &streaming;
    changed.codecs = &codecs;
    return changed;
  }();
  return api;
}

gradring_emulated_counts emulated_counts() {
  gradring_emulated_counts counts;
  gradring_emulated_count(&counts);
  return counts;
}

bool emulated_gpu_comes_to_rest(Millis time) {
  const Time deadline = Clock::now() + time;
  while (emulated_counts().pending > 0) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

DeviceCase::DeviceCase(const gradring_gpu_api& api, const PlanCase& c, const Memory& memory,
                       Rank rank)
    : device_(api, 0),
      layout_(memory),
      memory_(device_, std::max<std::size_t>(memory.bytes.size(), 1)),
      operation_(operation_of(c, rank, layout_)) {
  std::copy(memory.bytes.begin(), memory.bytes.end(), memory_.data());
  operation_.input = memory_.data() + layout_.input_at;
  operation_.output = memory_.data() + layout_.output_at;
}

reference::Buffer DeviceCase::bytes() const {
  return {memory_.data(), memory_.data() + layout_.bytes.size()};
}

reference::Buffer DeviceCase::output() const {
  const std::byte* const begin = memory_.data() + layout_.output_at;
  return {begin, begin + layout_.output_bytes};
}

}  // namespace gradring::testing
