#include "gpu/device.h"

#include "base/error.h"

namespace gradring::gpu {

Device::Device(const gradring_gpu_api& api, int index) : api_(api), index_(index) {
  int count = 0;
  check(runtime().device_count(&count), "count the devices");
  if (index < 0 || index >= count)
    throw DeviceError(str("there is no GPU ", index, "; this process sees ", count));
  check(runtime().device_facts(index, &facts_), "be asked for its facts");
}

bool Device::has_streaming() const {
  const gradring_stream_kernels* const kernels = api_.streaming;
  return kernels != nullptr && kernels->bytes >= sizeof *kernels && kernels->pack != nullptr &&
         kernels->unpack != nullptr && kernels->preload != nullptr &&
         kernels->preload(index_) == GRADRING_GPU_OK;
}

bool Device::has_codecs() const {
  const gradring_codec_kernels* const codecs = api_.codecs;
  return codecs != nullptr && codecs->bytes >= sizeof *codecs && codecs->preload != nullptr &&
         codecs->preload(index_) == GRADRING_GPU_OK;
}

void Device::fail(int code, const char* what) const {
  const char* const text = api_.error_text(code);
  const std::string name = facts_.name[0] == 0 ? "" : str(" (", facts_.name, ")");
  throw DeviceError(str("GPU ", index_, name, " could not ", what, ": ",
                        text == nullptr ? "unknown error" : text, " (code ", code, ")"));
}

}  // namespace gradring::gpu
