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

void Device::fail(int code, const char* what) const {
  const char* const text = api_.error_text(code);
  const std::string name = facts_.name[0] == 0 ? "" : str(" (", facts_.name, ")");
  throw DeviceError(str("GPU ", index_, name, " could not ", what, ": ",
                        text == nullptr ? "unknown error" : text, " (code ", code, ")"));
}

}  // namespace gradring::gpu
