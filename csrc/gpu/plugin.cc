#include "gpu/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/error.h"

namespace gradring::gpu {
namespace {

constexpr const char* kFileName = "libgradring_cuda.so";
constexpr const char* kVariable = "GRADRING_GPU_PLUGIN";

// The folder of the library that this code is in.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

[[noreturn]] void refuse(const PluginPlace& place, const std::string& why) {
  throw DeviceError(str("GPU plugin ", place.path, ": ", why));
}

// Called with no lock but the loader's own; the same answer on every thread.
const gradring_gpu_api& open(const PluginPlace& place) {
  if (!place.is_there && place.is_named)
    refuse(place, str("there is no such file; ", kVariable, " names it"));
  if (!place.is_there && *built_for() == '\0')
    throw DeviceError(str("this build of gradring has no GPU plugin: ", built_why(),
                          "; install CUDA's nvcc and build again with GRADRING_CUDA=ON, or copy "
                          "the array to the CPU"));
  if (!place.is_there) refuse(place, "the file is missing; install the wheel again");
  void* library = dlopen(place.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    refuse(place, why != nullptr ? why : "dlopen failed");
  }
  auto get_api = reinterpret_cast<gradring_gpu_get_api_fn>(dlsym(library, "gradring_gpu_get_api"));
  if (get_api == nullptr) refuse(place, "it has no gradring_gpu_get_api: is it ours?");
  const gradring_gpu_api* api = get_api();
  if (api == nullptr) refuse(place, "it gave no functions");
  if (api->abi != GRADRING_GPU_ABI || api->bytes != sizeof(gradring_gpu_api))
    refuse(place, str("it speaks version ", api->abi, " with ", api->bytes,
                      " bytes, this library version ", static_cast<unsigned>(GRADRING_GPU_ABI),
                      " with ", sizeof(gradring_gpu_api), "; install both from one wheel"));
  if (api->runtime == nullptr || api->error_text == nullptr || api->build == nullptr)
    refuse(place, "its table has holes");
  return *api;
}

std::string version_text(int version) {
  return str(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

PluginPlace plugin_place() {
  const char* named = std::getenv(kVariable);
  PluginPlace place;
  place.is_named = named != nullptr && *named != '\0';
  place.path = place.is_named ? std::string(named) : own_folder() + "/" + kFileName;
  place.is_there = access(place.path.c_str(), R_OK) == 0;
  return place;
}

const gradring_gpu_api& plugin() {
  static std::atomic<const gradring_gpu_api*> opened{nullptr};
  if (const auto* api = opened.load(std::memory_order_acquire)) return *api;
  static std::mutex mutex;  // Only one thread opens.
  const std::lock_guard lock(mutex);
  if (const auto* api = opened.load(std::memory_order_acquire)) return *api;
  const gradring_gpu_api& api = open(plugin_place());
  opened.store(&api, std::memory_order_release);
  return api;
}

const gradring_gpu_api& devices() {
  static std::atomic<bool> has_device{false};
  const gradring_gpu_api& api = plugin();
  if (has_device.load(std::memory_order_relaxed)) return api;
  int version = 0;
  int count = 0;
  static_cast<void>(api.runtime->driver_version(&version));
  const int code = api.runtime->device_count(&count);
  if (version == 0)
    throw DeviceError(str("no GPU driver on this machine (libcuda.so.1 does not load): ",
                          api.error_text(code), "; the plugin is ", api.build));
  if (code != 0)
    throw DeviceError(str("the GPU driver, for CUDA ", version_text(version),
                          ", does not serve this plugin, ", api.build, ": ", api.error_text(code)));
  if (count == 0)
    throw DeviceError(str("the GPU driver, for CUDA ", version_text(version),
                          ", shows no device; is CUDA_VISIBLE_DEVICES set to nothing?"));
  has_device.store(true, std::memory_order_relaxed);
  return api;
}

void check(int code, const char* what) {
  if (code != GRADRING_GPU_OK) throw DeviceError(str(what, ": ", plugin().error_text(code)));
}

const char* built_for() {
  return GRADRING_CUDA_BUILD;
}
const char* built_why() {
  return GRADRING_CUDA_WHY;
}

}  // namespace gradring::gpu
